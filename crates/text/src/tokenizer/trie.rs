//! A byte trie for longest-match and all-prefixes look-ups.

/// Maps byte strings to numbers; the first of equal strings wins.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    edges: Vec<(u8, u32)>,
    /// Child of the root for each first byte.
    first: Box<[Option<u32>; 256]>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    first_edge: u32,
    n_edges: u16,
    value: Option<u32>,
}

impl Trie {
    /// Builds the trie; empty keys are left out.
    pub(super) fn build<'a>(keys: impl IntoIterator<Item = (&'a [u8], u32)>) -> Self {
        let mut keys: Vec<_> = keys
            .into_iter()
            .filter(|(key, _)| !key.is_empty())
            .collect();
        keys.sort_by_key(|&(key, _)| key);
        keys.dedup_by_key(|&mut (key, _)| key);
        let mut trie = Trie {
            nodes: vec![Node::default()],
            edges: Vec::new(),
            first: Box::new([None; 256]),
        };
        // Breadth first, so that the edges of a node lie together.
        let mut queue = std::collections::VecDeque::from([(0_usize, 0..keys.len(), 0_usize)]);
        while let Some((node, range, depth)) = queue.pop_front() {
            trie.expand(node, &keys, range, depth, &mut queue);
        }
        for (byte, child) in trie.edges_of(0).to_vec() {
            trie.first[byte as usize] = Some(child);
        }
        trie
    }

    fn expand(
        &mut self,
        node: usize,
        keys: &[(&[u8], u32)],
        range: std::ops::Range<usize>,
        depth: usize,
        queue: &mut std::collections::VecDeque<(usize, std::ops::Range<usize>, usize)>,
    ) {
        let mut start = range.start;
        if start < range.end && keys[start].0.len() == depth {
            self.nodes[node].value = Some(keys[start].1);
            start += 1;
        }
        self.nodes[node].first_edge = self.edges.len() as u32;
        while start < range.end {
            let byte = keys[start].0[depth];
            let n = keys[start..range.end].partition_point(|(key, _)| key[depth] <= byte);
            let child = self.nodes.len();
            self.nodes.push(Node::default());
            self.edges.push((byte, child as u32));
            self.nodes[node].n_edges += 1;
            queue.push_back((child, start..start + n, depth + 1));
            start += n;
        }
    }

    fn edges_of(&self, node: u32) -> &[(u8, u32)] {
        let node = &self.nodes[node as usize];
        &self.edges[node.first_edge as usize..][..node.n_edges as usize]
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        if node == 0 {
            return self.first[byte as usize];
        }
        let edges = self.edges_of(node);
        if edges.len() > 8 {
            return edges
                .binary_search_by_key(&byte, |e| e.0)
                .ok()
                .map(|i| edges[i].1);
        }
        edges.iter().find(|e| e.0 == byte).map(|e| e.1)
    }

    /// Every key that starts `text`, shortest first, as (length, number).
    pub(super) fn prefixes<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        text.iter()
            .enumerate()
            .map_while(move |(i, &byte)| {
                node = self.child(node, byte)?;
                Some((i + 1, self.nodes[node as usize].value))
            })
            .filter_map(|(length, value)| Some((length, value?)))
    }

    /// The longest key that starts `text`.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(text).last()
    }

    /// Whether some key starts with `byte`.
    pub(super) fn starts_with(&self, byte: u8) -> bool {
        self.first[byte as usize].is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_longest() {
        let keys: [&[u8]; 6] = [b"a", b"abc", b"ab\xff", b"b", b"", b"abc"];
        let trie = Trie::build(keys.into_iter().zip(0..));
        assert_eq!(trie.prefixes(b"abcd").collect::<Vec<_>>(), [(1, 0), (3, 1)]);
        assert_eq!(trie.longest(b"ab\xff!"), Some((3, 2)));
        assert_eq!(trie.longest(b"xa"), None);
        assert!(trie.starts_with(b'b') && !trie.starts_with(b'c'));
    }

    #[test]
    fn a_node_with_all_children() {
        let keys: Vec<[u8; 2]> = (0..=255).map(|b| [b'x', b]).collect();
        let trie = Trie::build(keys.iter().map(|k| &k[..]).zip(0..));
        assert!((0..=255).all(|b| trie.longest(&[b'x', b]) == Some((2, u32::from(b)))));
    }
}
