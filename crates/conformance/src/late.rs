//! An executor whose news come late, and which in no other way differs from the one behind it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokkata_ir::{
    Adapter, ArenaLayout, BackendError, Executor, Progress, Refusal, SeqSlot, StepTime, Ticket,
    ValueId, Work,
};

/// Works that it holds.
const DEPTH: usize = 3;

/// Hands out news some polls after they came.
pub struct Late {
    inner: Box<dyn Executor>,
    /// News, and the polls until they are handed out.
    news: VecDeque<(u64, Result<Progress, BackendError>)>,
    under_way: usize,
    polls: u64,
    hides: Arc<AtomicBool>,
}

impl Late {
    /// Late news of `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Executor>) -> Self {
        Late {
            inner,
            news: VecDeque::new(),
            under_way: 0,
            polls: 0,
            hides: Arc::default(),
        }
    }

    /// While this is set no value can be read.
    #[must_use]
    pub fn hides(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.hides)
    }

    fn work(&mut self) {
        let news = match self.inner.poll() {
            Ok(None) => return,
            Ok(Some(news)) => Ok(news),
            Err(error) => Err(error),
        };
        let delay = tokkata_ir::sample::uniform(7, self.polls) % 4;
        self.news.push_back((delay, news));
    }
}

impl Executor for Late {
    fn depth(&self) -> usize {
        DEPTH.min(self.inner.depth())
    }

    fn arena(&self) -> &ArenaLayout {
        self.inner.arena()
    }

    fn submit(&mut self, work: Work) -> Result<Ticket, Refusal> {
        if self.under_way >= self.depth() {
            return Err(Refusal::Busy(Box::new(work)));
        }
        let ticket = self.inner.submit(work)?;
        self.under_way += 1;
        Ok(ticket)
    }

    fn poll(&mut self) -> Result<Option<Progress>, BackendError> {
        self.polls += 1;
        if self.news.is_empty() {
            self.work();
        }
        match self.news.front_mut() {
            Some((delay @ 1.., _)) => *delay -= 1,
            Some(_) => {
                let news = self.news.pop_front().map(|(_, news)| news).transpose()?;
                self.under_way -= usize::from(news.as_ref().is_some_and(|n| n.done));
                return Ok(news);
            }
            None => {}
        }
        Ok(None)
    }

    fn wait(&mut self) -> Result<Option<Progress>, BackendError> {
        loop {
            let news = self.poll()?;
            if news.is_some() || self.under_way == 0 {
                return Ok(news);
            }
        }
    }

    fn stop(&mut self, slot: SeqSlot) {
        self.inner.stop(slot);
    }

    fn rows(&self, ticket: &Ticket, value: ValueId) -> Result<usize, BackendError> {
        self.inner.rows(ticket, value)
    }

    fn read(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        if self.hides.load(Ordering::Relaxed) {
            return Err(BackendError::NotKept { value });
        }
        self.inner.read(ticket, value, rows, out)
    }

    fn read_ints(
        &mut self,
        ticket: &Ticket,
        value: ValueId,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), BackendError> {
        self.inner.read_ints(ticket, value, rows, out)
    }

    fn exported(&mut self, ticket: &Ticket, i: usize) -> Result<Vec<f32>, BackendError> {
        self.inner.exported(ticket, i)
    }

    fn attach(&mut self, adapter: &Arc<Adapter>) -> Result<u32, BackendError> {
        self.inner.attach(adapter)
    }

    fn detach(&mut self, adapter: u32) {
        self.inner.detach(adapter);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn measure(&mut self, on: bool) {
        self.inner.measure(on);
    }

    fn times(&self, ticket: &Ticket) -> Vec<StepTime> {
        self.inner.times(ticket)
    }
}
