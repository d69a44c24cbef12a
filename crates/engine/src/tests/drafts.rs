//! Rows that keep their states, over pools that are shared with stored prefixes and forks.

use tokkata_conformance::fixture::finish;
use tokkata_ir::sample::argmax;
use tokkata_ir::{BlockCopy, Delta, LogitRow, RowInput, RowStatus, SeqRows, SeqSlot, Work};

use super::*;
use crate::prefix::Wanted;
use crate::sequence::Sequence;

/// A cache beside the model that it is for, one work at a time.
struct Bench {
    cache: Cache,
    executor: HostExecutor<Fake>,
    kinds: &'static [CacheKind],
}

impl Bench {
    fn new(kinds: &'static [CacheKind]) -> Self {
        let size = |kind| if kind == STATE { 1 } else { 4 };
        let caches = kinds.iter().map(|&kind| group(kind, size(kind)));
        let (program, arena) = (program(caches.collect(), limits()), arena(kinds.len(), 300));
        let options = CacheOptions {
            shuffle_blocks: Some(3),
            ..CacheOptions::default()
        };
        Bench {
            cache: Cache::new(&program.caches, &limits(), &arena, &options),
            executor: HostExecutor::new(Fake::new(&program), program, arena),
            kinds,
        }
    }

    /// Feeds tokens whose blocks are reserved. Every row must see the tokens before it and nothing else.
    fn feed(&mut self, seq: &mut Sequence, copies: Vec<BlockCopy>, rows: SeqRows) {
        let RowInput::Tokens(own) = &rows.input else {
            unreachable!("these rows read tokens");
        };
        let (slot, tokens) = (rows.slot, [seq.tokens(), own].concat());
        let logit = |row| LogitRow {
            row,
            ..LogitRow::default()
        };
        let deltas = seq
            .changes()
            .into_iter()
            .chain([Delta::Length(seq.len() as u32)]);
        let work = Work {
            copies,
            deltas: deltas.map(|delta| (slot, delta)).collect(),
            rows: vec![SeqRows {
                logits: (0..own.len() as u32).map(logit).collect(),
                ..rows
            }],
            ..Work::default()
        };
        let (_, results) = finish(&mut self.executor, work).unwrap();
        for (end, result) in (seq.len() + 1..).zip(results) {
            let best = argmax(&expected(given(&tokens[..end]), self.kinds)).unwrap();
            assert_eq!(result.status, RowStatus::Drawn(best), "at {end}");
        }
    }

    /// Feeds tokens plainly.
    fn plain(&mut self, seq: &mut Sequence, tokens: &[u32]) {
        for tokens in tokens.chunks(limits().logit_rows as usize) {
            let copies = self.cache.reserve(seq, tokens.len()).unwrap();
            self.feed(seq, copies, SeqRows::tokens(SeqSlot(0), tokens));
            self.cache.commit(seq, tokens, true);
        }
    }

    /// Feeds a draft of which the first so many tokens are right.
    fn draft(&mut self, seq: &mut Sequence, draft: &[u32], right: usize) {
        let copies = self.cache.reserve_kept(seq, draft.len()).unwrap();
        let rows = SeqRows {
            keeps_states: true,
            ..SeqRows::tokens(SeqSlot(0), draft)
        };
        self.feed(seq, copies, rows);
        self.cache.commit_kept(seq, &draft[..right], true);
    }
}

#[test]
fn a_draft_goes_on_from_any_of_its_rows() {
    for kinds in KINDS {
        let mut bench = Bench::new(kinds);
        let mut seq = bench.cache.sequence(0);
        for (turn, n) in (0..24).map(|turn| (turn, turn % 4)) {
            let draft = prompt(3, turn as u64);
            bench.draft(&mut seq, &draft, n);
            match turn % 5 {
                0 => bench.plain(&mut seq, &prompt(2, 100 + turn as u64)),
                // A stored state is not written over, wherever its block comes to lie.
                2 => bench.cache.snapshot(&mut seq),
                _ => {}
            }
        }
        let (tokens, mut again) = (seq.tokens().to_vec(), bench.cache.sequence(0));
        bench.cache.release(seq);
        let reused = bench.cache.reuse(&mut again, &tokens, &Wanted::PROMPT);
        assert!(reused > tokens.len() / 2, "{reused} of {}", tokens.len());
        bench.plain(&mut again, &tokens[reused..]);
        let mut fork = bench.cache.fork(&again);
        for (turn, n) in [(50, 1), (51, 3), (52, 2)] {
            bench.draft(&mut again, &prompt(3, turn), n);
            fork.forget_synced();
            bench.draft(&mut fork, &prompt(3, turn + 10), 3 - n);
            again.forget_synced();
        }
        for seq in [again, fork] {
            bench.cache.release(seq);
        }
        bench.cache.forget();
        assert!(bench.cache.pools().is_unused(), "{:?}", bench.cache.pools());
    }
}
