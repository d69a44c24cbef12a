//! Who is let in, and who has to wait.

use tokkata_ir::CacheKind;

use super::Engine;
use crate::prefix::Wanted;
use crate::task::Task;

/// Younger tasks that may be let in before one that does not fit yet.
const MOST_PASSES: usize = 64;
/// Waiting tasks that are tried when the first does not fit.
const TRIES: usize = 8;

impl Engine {
    /// Lets waiting tasks run while slots and blocks last: a task is let in when its prompt fits beside what those who
    /// run still need.
    pub(super) fn admit(&mut self) {
        let mut at = 0;
        while at < self.waiting.len().min(TRIES) && !self.slots.is_empty() {
            let mut task = self.waiting.remove(at).expect("the place was checked");
            self.resume(&mut task);
            if self.fits(&task) {
                self.pass_before(at);
                task.slot = self.slots.pop();
                self.running.push(task);
                continue;
            }
            self.cache.clear(&mut task.seq);
            let patient = task.passed < MOST_PASSES;
            self.waiting.insert(at, task);
            if !patient {
                return;
            }
            at += 1;
        }
    }

    /// Those who stand before a place are passed by somebody younger.
    fn pass_before(&mut self, at: usize) {
        self.waiting.iter_mut().take(at).for_each(|t| t.passed += 1);
    }

    /// Whether a task's prompt can be had beside what the running ones still need. Parked sessions make room first;
    /// one that runs alone is let in whatever it needs.
    fn fits(&mut self, task: &Task) -> bool {
        let wanted = self.needs_with(task);
        while !self.cache.could_take(&wanted) {
            if !self.yield_session() {
                return self.running.is_empty() && self.leaving.is_empty();
            }
        }
        true
    }

    /// Blocks of each group that the running tasks and this one need for the tokens they have, and one row more each.
    fn needs_with(&self, task: &Task) -> Vec<usize> {
        let mut sum = vec![0; self.program.caches.len()];
        for task in self.running.iter().chain([task]) {
            let rows = task.tokens.len().saturating_sub(task.seq.end()) + 1;
            let needs = self.cache.needs(&task.seq, rows);
            sum.iter_mut().zip(needs).for_each(|(sum, n)| *sum += n);
        }
        sum
    }

    /// Keeps what a task's sequence shares with its tokens, or finds a stored prefix.
    fn resume(&mut self, task: &mut Task) {
        if let Some(encode) = &task.encode {
            let encoded = encode.input.len();
            self.cache.clear(&mut task.seq);
            task.seq.encoded = encoded;
            task.forget_encoded();
        }
        let pairs = task.seq.tokens().iter().zip(&task.tokens);
        let shared = pairs.take_while(|(a, b)| a == b).count();
        // What has moved is not what these tokens would give.
        let unmoved = task.seq.moved.unwrap_or(usize::MAX);
        let shared = shared.min(task.tokens.len() - 1).min(unmoved);
        if self.cache.can_truncate(&task.seq, shared) {
            self.cache.cut(&mut task.seq, shared);
        } else {
            self.cache.snapshot(&mut task.seq);
            self.cache.clear(&mut task.seq);
        }
        if task.seq.is_empty() && self.reads_caches(task) {
            let answers = task.kinds();
            let wanted = Wanted {
                answers: &answers,
                exactly: !task.had.is_empty(),
            };
            self.cache.reuse(&mut task.seq, &task.tokens, &wanted);
        }
        if task.stats.generated_tokens == 0 && task.stats.computed_tokens == 0 {
            task.stats.reused_tokens = task.seq.len();
        }
        task.fresh = true;
        task.seq.forget_synced();
    }

    /// Whether a task can go on from stored blocks: one that reads rows needs them all computed.
    fn reads_caches(&self, task: &Task) -> bool {
        let cross = self
            .program
            .caches
            .iter()
            .any(|g| g.kind == CacheKind::Cross);
        !cross && task.may_reuse()
    }

    /// Takes a task's blocks; it computes again what is not stored when it runs next, before those who wait.
    pub(super) fn preempt(&mut self, i: usize) {
        let mut task = self.running.remove(i);
        self.slots.extend(task.slot.take());
        self.cache.abandon(&mut task.seq);
        task.note_kinds();
        self.cache.snapshot(&mut task.seq);
        self.cache.clear(&mut task.seq);
        self.waiting.push_front(task);
    }
}
