//! The prefix cache: which blocks hold the cache of which tokens.
//!
//! A tree whose edges are granules of [`GRANULE`] tokens; a shorter edge is a leaf that marks a snapshot between
//! granules. Edges are compared token by token, so no two prefixes are ever taken for one another. A node pins, per
//! cache group, the blocks that hold its own positions, or the state after them.

use std::collections::{BTreeSet, HashMap};

use crate::pool::{Block, BlockPool};

/// Tokens per edge.
pub const GRANULE: usize = 32;

/// A node that is never reused for another prefix.
pub type NodeId = u64;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    tokens: Box<[u32]>,
    children: HashMap<Box<[u32]>, NodeId>,
    partials: Vec<NodeId>,
    /// Per group: what is pinned, and the stamp it is ordered by.
    held: Vec<Option<(u64, Span)>>,
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
    nodes: HashMap<NodeId, Node>,
    roots: HashMap<u64, NodeId>,
    /// Per group: nodes that pin blocks, least recently used first.
    lru: Vec<BTreeSet<(u64, NodeId)>>,
    clock: u64,
}

impl PrefixCache {
    /// An empty cache over `groups` cache groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        PrefixCache {
            nodes: HashMap::new(),
            roots: HashMap::new(),
            lru: vec![BTreeSet::new(); groups],
            clock: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether the node still exists.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
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

    fn add(&mut self, parent: Option<NodeId>, tokens: &[u32]) -> NodeId {
        let id = self.tick();
        let held = vec![None; self.lru.len()];
        let node = Node {
            parent,
            tokens: tokens.into(),
            children: HashMap::new(),
            partials: Vec::new(),
            held,
        };
        self.nodes.insert(id, node);
        id
    }

    /// The node of no tokens under a salt (adapter, media, user).
    pub fn root(&mut self, salt: u64) -> NodeId {
        if let Some(&id) = self.roots.get(&salt) {
            return id;
        }
        let id = self.add(None, &[]);
        self.roots.insert(salt, id);
        id
    }

    /// The child of `parent` along `tokens` (at most one granule), made when it is not there.
    pub fn child(&mut self, parent: NodeId, tokens: &[u32]) -> NodeId {
        assert!(
            (1..=GRANULE).contains(&tokens.len()),
            "an edge is one granule at most"
        );
        if let Some(&id) = self.nodes[&parent].children.get(tokens) {
            return id;
        }
        let id = self.add(Some(parent), tokens);
        let up = self.nodes.get_mut(&parent).expect("the parent exists");
        up.children.insert(tokens.into(), id);
        if tokens.len() < GRANULE {
            up.partials.push(id);
        }
        id
    }

    /// Every stored prefix of `tokens` along one path: whole granules, and the marks between them.
    #[must_use]
    pub fn hits(&self, salt: u64, tokens: &[u32]) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut at = self.roots.get(&salt).copied();
        let mut depth = 0;
        while let Some(id) = at {
            let (node, rest) = (&self.nodes[&id], &tokens[depth * GRANULE..]);
            for &partial in &node.partials {
                let edge = &self.nodes[&partial].tokens;
                if rest.starts_with(edge) {
                    let len = depth * GRANULE + edge.len();
                    hits.push(Hit {
                        depth,
                        len,
                        node: partial,
                    });
                }
            }
            at = rest
                .get(..GRANULE)
                .and_then(|edge| node.children.get(edge).copied());
            depth += 1;
            hits.extend(at.map(|node| Hit {
                depth,
                len: depth * GRANULE,
                node,
            }));
        }
        hits
    }

    /// What a node pins in a group.
    #[must_use]
    pub fn span(&self, node: NodeId, group: usize) -> Option<&Span> {
        let held = self.nodes.get(&node)?.held[group].as_ref()?;
        Some(&held.1)
    }

    /// Pins blocks for a node that pins none in this group.
    pub fn hold(&mut self, node: NodeId, group: usize, span: Span, pool: &mut BlockPool) {
        if self.span(node, group).is_some() {
            return;
        }
        let stamp = self.tick();
        for &(block, positions) in &span.blocks {
            pool.pin(block, positions);
        }
        let slot = self.nodes.get_mut(&node).expect("the node exists");
        slot.held[group] = Some((stamp, span));
        self.lru[group].insert((stamp, node));
    }

    /// Marks a path as used now; its beginning counts as used last, so that ends are given up first.
    pub fn touch(&mut self, path: &[NodeId]) {
        for &id in path.iter().rev() {
            for group in 0..self.lru.len() {
                let stamp = self.tick();
                let held = self.nodes.get_mut(&id).and_then(|n| n.held[group].as_mut());
                if let Some(held) = held {
                    let old = std::mem::replace(&mut held.0, stamp);
                    self.lru[group].remove(&(old, id));
                    self.lru[group].insert((stamp, id));
                }
            }
        }
    }

    /// Gives up pins of the group, least recently used first, until a block is free. False when none can be.
    pub fn evict(&mut self, group: usize, pools: &mut [BlockPool]) -> bool {
        while pools[group].free() == 0 {
            let idle = |id: &NodeId| {
                let held = self.nodes[id].held[group].as_ref();
                held.is_some_and(|(_, span)| span.blocks.iter().any(|b| pools[group].is_idle(b.0)))
            };
            let Some(&(_, id)) = self.lru[group].iter().find(|(_, id)| idle(id)) else {
                return false;
            };
            self.drop_held(id, group, pools);
            self.prune(id);
        }
        true
    }

    fn drop_held(&mut self, id: NodeId, group: usize, pools: &mut [BlockPool]) {
        let held = self.nodes.get_mut(&id).and_then(|n| n.held[group].take());
        if let Some((stamp, span)) = held {
            self.lru[group].remove(&(stamp, id));
            for (block, _) in span.blocks {
                pools[group].unpin(block);
            }
        }
    }

    /// Removes nodes that pin nothing and lead nowhere, from `id` upwards.
    fn prune(&mut self, mut id: NodeId) {
        loop {
            let node = &self.nodes[&id];
            let useless = node.children.is_empty() && node.held.iter().all(Option::is_none);
            let Some(parent) = node.parent.filter(|_| useless) else {
                return;
            };
            let node = self.nodes.remove(&id).expect("the node exists");
            let up = self
                .nodes
                .get_mut(&parent)
                .expect("a parent outlives its children");
            up.children.remove(&node.tokens);
            up.partials.retain(|&p| p != id);
            id = parent;
        }
    }

    /// Gives everything up.
    pub fn clear(&mut self, pools: &mut [BlockPool]) {
        for group in 0..self.lru.len() {
            while let Some(&(_, id)) = self.lru[group].first() {
                self.drop_held(id, group, pools);
            }
        }
        self.nodes.clear();
        self.roots.clear();
    }
}
