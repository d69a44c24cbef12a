//! Code lengths of a block, as zlib chooses them, and the bits that it takes.

use super::matches::Symbol;

const LENGTHS: usize = 286;
const DISTANCES: usize = 30;
const END: usize = 256;
/// Order in which lengths of lengths are written.
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

fn length_extra(code: usize) -> usize {
    match code {
        0..8 | 28 => 0,
        _ => (code - 4) / 4,
    }
}

fn distance_extra(code: usize) -> usize {
    (code / 2).saturating_sub(1)
}

/// Code of a match's length, counted from 0.
fn length_code(length: usize) -> usize {
    if length == 258 {
        return 28;
    }
    let mut base = 3;
    let mut code = 0;
    while length >= base + (1 << length_extra(code)) {
        base += 1 << length_extra(code);
        code += 1;
    }
    code
}

fn distance_code(distance: usize) -> usize {
    let mut base = 1;
    let mut code = 0;
    while distance >= base + (1 << distance_extra(code)) {
        base += 1 << distance_extra(code);
        code += 1;
    }
    code
}

/// A code of prefixes over so many symbols.
struct Tree {
    lengths: Vec<usize>,
    /// The last symbol that has a code.
    last: usize,
    /// Bits of all symbols with their extra bits, of those that occur.
    bits: isize,
}

impl Tree {
    /// For these counts, with codes of at most `most` bits.
    fn new(counts: &[usize], extra: &dyn Fn(usize) -> usize, most: usize) -> Self {
        let n = counts.len();
        let mut freq = counts.to_vec();
        freq.resize(2 * n + 1, 0);
        let mut heap = Heap {
            places: vec![0],
            depth: vec![0usize; 2 * n + 1],
            freq,
        };
        let (mut last, mut bits) = (0, 0isize);
        for i in (0..n).filter(|&i| counts[i] > 0) {
            heap.places.push(i);
            last = i;
        }
        let none = heap.places.len() == 1;
        let mut highest = if none { None } else { Some(last) };
        while heap.places.len() < 3 {
            // Two codes at least, so that a decoder has something to read.
            let node = match highest {
                None => 0,
                Some(h) if h < 2 => h + 1,
                Some(_) => 0,
            };
            if highest.is_none_or(|h| h < 2) {
                highest = Some(node);
            }
            heap.freq[node] = 1;
            heap.places.push(node);
            bits -= 1;
        }
        last = highest.unwrap_or(last);
        let (parents, order) = heap.join(n);
        let mut tree = Tree {
            lengths: vec![0; 2 * n + 1],
            last,
            bits,
        };
        tree.assign((&parents, &order), &heap.freq, extra, most);
        tree.lengths.truncate(n);
        tree
    }

    /// Lengths from the root down, cut at `most`.
    fn assign(
        &mut self,
        (parents, order): (&[usize], &[usize]),
        freq: &[usize],
        extra: &dyn Fn(usize) -> usize,
        most: usize,
    ) {
        let mut counts = vec![0isize; most + 1];
        let mut over = 0isize;
        self.lengths[order[0]] = 0;
        for &node in &order[1..] {
            let mut len = self.lengths[parents[node]] + 1;
            if len > most {
                len = most;
                over += 1;
            }
            self.lengths[node] = len;
            if node <= self.last {
                counts[len] += 1;
                self.bits += (freq[node] * (len + extra(node))) as isize;
            }
        }
        if over == 0 {
            return;
        }
        while over > 0 {
            let mut len = most - 1;
            while counts[len] == 0 {
                len -= 1;
            }
            counts[len] -= 1;
            counts[len + 1] += 2;
            counts[most] -= 1;
            over -= 2;
        }
        let mut rest = order.iter().rev();
        for len in (1..=most).rev() {
            let mut left = counts[len];
            while left > 0 {
                let &node = rest.next().expect("as many leaves as were counted");
                if node > self.last {
                    continue;
                }
                let change = len as isize - self.lengths[node] as isize;
                self.bits += change * freq[node] as isize;
                self.lengths[node] = len;
                left -= 1;
            }
        }
    }
}

/// A heap of nodes by frequency, then depth; places count from 1.
struct Heap {
    places: Vec<usize>,
    depth: Vec<usize>,
    freq: Vec<usize>,
}

impl Heap {
    fn smaller(&self, a: usize, b: usize) -> bool {
        (self.freq[a], self.depth[a]) <= (self.freq[b], self.depth[b])
    }

    fn sink(&mut self, mut place: usize) {
        let node = self.places[place];
        let len = self.places.len() - 1;
        let mut child = 2 * place;
        while child <= len {
            if child < len && self.smaller(self.places[child + 1], self.places[child]) {
                child += 1;
            }
            if self.smaller(node, self.places[child]) {
                break;
            }
            self.places[place] = self.places[child];
            place = child;
            child *= 2;
        }
        self.places[place] = node;
    }

    /// Joins the rarest nodes until one is left. Parents, and all nodes from the root on.
    fn join(&mut self, n: usize) -> (Vec<usize>, Vec<usize>) {
        let mut parents = vec![0; self.freq.len()];
        let mut order = Vec::new();
        for place in (1..=(self.places.len() - 1) / 2).rev() {
            self.sink(place);
        }
        let mut node = n;
        while self.places.len() > 2 {
            let a = self.places[1];
            let moved = self.places.pop().expect("it holds two");
            self.places[1] = moved;
            self.sink(1);
            let b = self.places[1];
            order.extend([a, b]);
            self.freq[node] = self.freq[a] + self.freq[b];
            self.depth[node] = self.depth[a].max(self.depth[b]) + 1;
            (parents[a], parents[b]) = (node, node);
            self.places[1] = node;
            node += 1;
            self.sink(1);
        }
        order.push(self.places[1]);
        order.reverse();
        (parents, order)
    }
}

/// Counts the codes that write lengths, runs of equal ones shortened.
fn count_lengths(tree: &Tree, counts: &mut [usize; 19]) {
    let bounds = |next: Option<usize>, same: bool| match (next, same) {
        (Some(0), _) => (138, 3),
        (_, true) => (6, 3),
        _ => (7, 4),
    };
    let lengths = &tree.lengths[..=tree.last];
    let mut before = None;
    let mut count = 0;
    let (mut most, mut least) = if lengths[0] == 0 { (138, 3) } else { (7, 4) };
    for (i, &len) in lengths.iter().enumerate() {
        let next = lengths.get(i + 1).copied();
        count += 1;
        if count < most && next == Some(len) {
            continue;
        }
        if count < least {
            counts[len] += count;
        } else if len != 0 {
            if before != Some(len) {
                counts[len] += 1;
            }
            counts[16] += 1;
        } else if count <= 10 {
            counts[17] += 1;
        } else {
            counts[18] += 1;
        }
        count = 0;
        before = Some(len);
        (most, least) = bounds(next, next == Some(len));
    }
}

/// Bits of a block, 0 where it is stored as it is.
pub(super) fn block_bits(symbols: &[Symbol], stored: usize) -> usize {
    let mut lengths = [0usize; LENGTHS];
    let mut distances = [0usize; DISTANCES];
    lengths[END] = 1;
    for s in symbols {
        if s.length == 0 {
            lengths[usize::from(s.distance)] += 1;
        } else {
            lengths[END + 1 + length_code(s.length.into())] += 1;
            distances[distance_code(s.distance.into())] += 1;
        }
    }
    let extra = |i: usize| i.checked_sub(END + 1).map_or(0, length_extra);
    let literal_tree = Tree::new(&lengths, &extra, 15);
    let distance_tree = Tree::new(&distances, &distance_extra, 15);
    let mut counts = [0; 19];
    count_lengths(&literal_tree, &mut counts);
    count_lengths(&distance_tree, &mut counts);
    let runs = |i: usize| [2, 3, 7].get(i.wrapping_sub(16)).copied().unwrap_or(0);
    let length_tree = Tree::new(&counts, &runs, 7);
    let written = (3..19).rev().find(|&i| length_tree.lengths[ORDER[i]] != 0);
    let written = written.unwrap_or(2) + 1;
    let own = literal_tree.bits + distance_tree.bits + length_tree.bits;
    let own = own as usize + 3 * written + 14;
    let fixed_length = |i: usize| match i {
        0..144 | 280.. => 8,
        144..256 => 9,
        _ => 7,
    };
    let of = |counts: &[usize], bits: &dyn Fn(usize) -> usize| {
        let all = counts.iter().enumerate();
        all.map(|(i, &n)| n * bits(i)).sum::<usize>()
    };
    let fixed =
        of(&lengths, &|i| fixed_length(i) + extra(i)) + of(&distances, &|i| 5 + distance_extra(i));
    let bytes = |bits: usize| (bits + 10) >> 3;
    let best = bytes(own).min(bytes(fixed));
    if stored + 4 <= best && stored > 0 {
        0
    } else if bytes(fixed) == best {
        3 + fixed
    } else {
        3 + own
    }
}
