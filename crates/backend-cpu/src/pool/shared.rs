//! Pools that all models of a process share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Pinning, Pool};

/// The pools in use, one per number of workers and placement. Cores are the process's, not a model's: two models that
/// run at once take turns on one set of threads rather than crowd each other out.
#[derive(Debug, Default)]
pub struct Pools(Mutex<Vec<(Pinning, Weak<Pool>)>>);

impl Pools {
    /// No pools yet.
    #[must_use]
    pub const fn new() -> Self {
        Pools(Mutex::new(Vec::new()))
    }

    /// The pool of `count` workers (at least 1), placed as `pinning` says: that of whoever else holds one, or a new one.
    #[must_use]
    pub fn get(&self, count: usize, pinning: Pinning) -> Arc<Pool> {
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|(_, pool)| pool.strong_count() > 0);
        let fits = |pool: &Arc<Pool>| pool.count() == count.max(1);
        let alike = pools.iter().filter(|(placed, _)| *placed == pinning);
        if let Some(found) = alike.filter_map(|(_, pool)| pool.upgrade()).find(fits) {
            return found;
        }
        let new = Arc::new(Pool::with_pinning(count, pinning));
        pools.push((pinning, Arc::downgrade(&new)));
        new
    }
}
