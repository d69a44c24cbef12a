//! The prefix cache: which blocks hold the cache of which tokens.
//!
//! A tree whose edges are granules of [`GRANULE`] tokens; a shorter edge is a leaf that marks a snapshot between
//! granules. Edges are compared token by token, so no two prefixes are ever taken for one another. A node knows which
//! of its rows were computed as an answer's rather than a prompt's, since a device may compute the two differently. It
//! pins, per cache group, the blocks that hold its own positions, or the state after them.

use std::collections::HashMap;

use crate::pool::{Block, BlockPools};

/// Tokens per edge.
pub const GRANULE: usize = 32;

/// A node that is never reused for another prefix.
pub type NodeId = u64;

/// Which rows of a granule were an answer's: bit i for row i.
pub type Kinds = u32;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    /// What it is the root of, for nodes without a parent.
    salt: u64,
    tokens: Box<[u32]>,
    kinds: Kinds,
    /// By tokens; of equal tokens those whose rows were of different kinds.
    children: HashMap<Box<[u32]>, Vec<NodeId>>,
    partials: Vec<NodeId>,
    /// Per group: what is pinned.
    held: Vec<Option<Span>>,
    /// Sequences that go through it; while there are any it stays, whatever it still pins.
    users: u32,
}

/// The blocks of consecutive positions, or one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First position; blocks of earlier ones were gone already.
    pub start: usize,
    /// Each block, with its leading positions that must be kept.
    pub blocks: Vec<(Block, u32)>,
}

/// A stored prefix that starts a list of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Granules before it.
    pub depth: usize,
    /// Tokens it covers in all.
    pub len: usize,
    /// Its node.
    pub node: NodeId,
}

/// Stored prefixes. Blocks are pinned in the pools that every method is handed.
#[derive(Debug)]
pub struct PrefixCache {
    groups: usize,
    nodes: HashMap<NodeId, Node>,
    roots: HashMap<u64, NodeId>,
    /// Nodes that pin a block, by group.
    pinned_by: Vec<HashMap<Block, Vec<NodeId>>>,
    next: NodeId,
}

impl PrefixCache {
    /// An empty cache over `groups` cache groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        PrefixCache {
            groups,
            nodes: HashMap::new(),
            roots: HashMap::new(),
            pinned_by: vec![HashMap::new(); groups],
            next: 0,
        }
    }

    /// Number of stored prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len() - self.roots.len()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of salts under which something is stored.
    #[must_use]
    pub fn salts(&self) -> usize {
        self.roots.len()
    }

    fn add(
        &mut self,
        parent: Option<NodeId>,
        salt: u64,
        (tokens, kinds): (&[u32], Kinds),
    ) -> NodeId {
        self.next += 1;
        let node = Node {
            parent,
            salt,
            tokens: tokens.into(),
            kinds,
            children: HashMap::new(),
            partials: Vec::new(),
            held: vec![None; self.groups],
            users: 0,
        };
        self.nodes.insert(self.next, node);
        self.next
    }

    /// The node of no tokens under a salt (adapter, media, user).
    pub fn root(&mut self, salt: u64) -> NodeId {
        if let Some(&id) = self.roots.get(&salt) {
            return id;
        }
        let id = self.add(None, salt, (&[], 0));
        self.roots.insert(salt, id);
        id
    }

    /// The child of `parent` along `tokens` (at most one granule) of these kinds, made when it is not there.
    pub fn child(&mut self, parent: NodeId, tokens: &[u32], kinds: Kinds) -> NodeId {
        assert!(
            (1..=GRANULE).contains(&tokens.len()),
            "an edge is one granule at most"
        );
        let up = &self.nodes[&parent];
        let known = up.children.get(tokens).into_iter().flatten();
        if let Some(&id) = known
            .copied()
            .find(|id| self.nodes[id].kinds == kinds)
            .as_ref()
        {
            return id;
        }
        let salt = up.salt;
        let id = self.add(Some(parent), salt, (tokens, kinds));
        let up = self.nodes.get_mut(&parent).expect("the parent exists");
        up.children.entry(tokens.into()).or_default().push(id);
        if tokens.len() < GRANULE {
            up.partials.push(id);
        }
        id
    }

    /// Every stored prefix of `tokens` along one path: whole granules, and the marks between them. Of granules with
    /// equal tokens the one of the wanted kinds comes first, then, unless they must be these, any other.
    #[must_use]
    pub fn hits(&self, salt: u64, tokens: &[u32], wanted: &Wanted<'_>) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut at = self.roots.get(&salt).copied();
        let mut depth = 0;
        while let Some(id) = at {
            let start = depth * GRANULE;
            let (node, rest) = (&self.nodes[&id], &tokens[start..]);
            for &partial in &node.partials {
                let edge = &self.nodes[&partial];
                if rest.starts_with(&edge.tokens) && wanted.allows(start, edge) {
                    let len = start + edge.tokens.len();
                    hits.push(Hit {
                        depth,
                        len,
                        node: partial,
                    });
                }
            }
            let edges = rest.get(..GRANULE).and_then(|edge| node.children.get(edge));
            let edges = edges.into_iter().flatten().copied();
            let allowed = edges.filter(|id| wanted.allows(start, &self.nodes[id]));
            at = allowed.min_by_key(|id| !wanted.is(start, &self.nodes[id]));
            depth += 1;
            hits.extend(at.map(|node| Hit {
                depth,
                len: depth * GRANULE,
                node,
            }));
        }
        hits
    }

    /// Which of a node's rows are an answer's.
    pub fn answers(&self, node: NodeId) -> impl Iterator<Item = bool> + use<> {
        let node = self.nodes.get(&node);
        let (kinds, len) = node.map_or((0, 0), |n| (n.kinds, n.tokens.len()));
        (0..len).map(move |i| kinds >> i & 1 == 1)
    }

    /// What a node pins in a group.
    #[must_use]
    pub fn span(&self, node: NodeId, group: usize) -> Option<&Span> {
        self.nodes.get(&node)?.held[group].as_ref()
    }

    /// Pins blocks for a node that pins none in this group.
    pub fn hold(&mut self, node: NodeId, group: usize, span: Span, pools: &mut BlockPools) {
        if self.span(node, group).is_some() {
            return;
        }
        for &(block, positions) in &span.blocks {
            pools.pin(group, block, positions);
            self.pinned_by[group].entry(block).or_default().push(node);
        }
        let slot = self.nodes.get_mut(&node).expect("the node exists");
        slot.held[group] = Some(span);
    }

    /// A sequence goes through these nodes.
    pub fn enter(&mut self, path: &[NodeId]) {
        for id in path {
            self.nodes.get_mut(id).expect("a path's nodes exist").users += 1;
        }
    }

    /// A sequence no longer goes through these nodes.
    pub fn leave(&mut self, path: &[NodeId]) {
        for &id in path.iter().rev() {
            let node = self.nodes.get_mut(&id).expect("a node in use exists");
            node.users -= 1;
            self.prune(id);
        }
    }

    /// Gives up every pin on a block.
    pub fn give_up(&mut self, group: usize, block: Block, pools: &mut BlockPools) {
        for id in self.pinned_by[group]
            .get(&block)
            .cloned()
            .unwrap_or_default()
        {
            self.drop_held(id, group, pools);
            self.prune(id);
        }
    }

    fn drop_held(&mut self, id: NodeId, group: usize, pools: &mut BlockPools) {
        let Some(span) = self.nodes.get_mut(&id).and_then(|n| n.held[group].take()) else {
            return;
        };
        for (block, _) in span.blocks {
            pools.unpin(group, block);
            if let Some(nodes) = self.pinned_by[group].get_mut(&block) {
                nodes.retain(|&n| n != id);
                if nodes.is_empty() {
                    self.pinned_by[group].remove(&block);
                }
            }
        }
    }

    /// Removes nodes that pin nothing, lead nowhere and are not in use, from `id` upwards.
    fn prune(&mut self, mut id: NodeId) {
        while let Some(node) = self.nodes.get(&id) {
            let pins = node.held.iter().any(Option::is_some);
            if pins || node.users > 0 || !node.children.is_empty() {
                return;
            }
            let node = self.nodes.remove(&id).expect("the node exists");
            let Some(parent) = node.parent else {
                self.roots.remove(&node.salt);
                return;
            };
            let up = self
                .nodes
                .get_mut(&parent)
                .expect("a parent outlives its children");
            if let Some(children) = up.children.get_mut(&node.tokens) {
                children.retain(|&c| c != id);
                if children.is_empty() {
                    up.children.remove(&node.tokens);
                }
            }
            up.partials.retain(|&p| p != id);
            id = parent;
        }
    }

    /// Gives everything up that no sequence goes through.
    pub fn clear(&mut self, pools: &mut BlockPools) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            (0..self.groups).for_each(|group| self.drop_held(id, group, pools));
            self.prune(id);
        }
    }
}

/// The kinds of rows that a prefix is wanted with.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// By position: whether the row is an answer's; those past its end are a prompt's.
    pub answers: &'a [bool],
    /// Rows of other kinds will not do.
    pub exactly: bool,
}

impl Wanted<'_> {
    /// Any rows of a prompt.
    pub const PROMPT: Wanted<'static> = Wanted {
        answers: &[],
        exactly: false,
    };

    fn kinds(&self, start: usize, len: usize) -> Kinds {
        kinds(self.answers, start, len)
    }

    fn is(&self, start: usize, node: &Node) -> bool {
        node.kinds == self.kinds(start, node.tokens.len())
    }

    fn allows(&self, start: usize, node: &Node) -> bool {
        !self.exactly || self.is(start, node)
    }
}

/// Kinds of `len` rows from `start` on.
#[must_use]
pub fn kinds(answers: &[bool], start: usize, len: usize) -> Kinds {
    let set = |i: usize| answers.get(start + i).copied().unwrap_or(false);
    (0..len)
        .filter(|&i| set(i))
        .fold(0, |bits, i| bits | 1 << i)
}
