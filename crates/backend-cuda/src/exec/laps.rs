//! Times of the items of a step, taken on the device.
//!
//! Events stand between the launches of one item and those of the next, in graphs too, so that what the host takes to
//! launch is in no time.

use std::sync::Arc;

use tokkata_ir::StepTime;

use super::{CudaExecutor, Way};
use crate::driver::{Context, Event, Fault, Stream};
use crate::launch::{Bucket, Launch};

/// The launches of a step with an event before each item, and one behind the last.
pub(super) struct Laps {
    bucket: Bucket,
    events: Vec<Event>,
    /// The item behind each event but the last; none for what no item asked for.
    items: Vec<Option<usize>>,
}

impl Laps {
    pub(super) fn new(
        context: &Arc<Context>,
        launches: &[Launch],
        bucket: Bucket,
    ) -> Result<Self, Fault> {
        let mut items: Vec<_> = launches.iter().filter(|l| l.is_of(bucket)).collect();
        items.dedup_by_key(|l| l.item);
        let items: Vec<_> = items.into_iter().map(|l| l.item).collect();
        let events = (0..=items.len()).map(|_| Event::new(context));
        Ok(Laps {
            bucket,
            events: events.collect::<Result<_, _>>()?,
            items,
        })
    }

    /// Launches them, or notes them in a capture.
    pub(super) fn run(
        &self,
        launches: &[Launch],
        (stream, captured): (&Stream, bool),
    ) -> Result<(), Fault> {
        let (mut at, mut item) = (0, None);
        for launch in launches.iter().filter(|l| l.is_of(self.bucket)) {
            if item != Some(launch.item) {
                stream.record_replayed(&self.events[at], captured)?;
                (at, item) = (at + 1, Some(launch.item));
            }
            launch.run(stream, self.bucket)?;
        }
        stream.record_replayed(&self.events[at], captured)
    }
}

impl CudaExecutor {
    /// What the items of a step took, which is done.
    pub(super) fn times_of(
        &self,
        (plan, adapts): Way,
        laps: &Laps,
    ) -> Result<Vec<StepTime>, Fault> {
        self.resident.context.bind()?;
        let nodes = &self.resident.program.plans[plan].nodes;
        let items = &self.plans[plan].of(adapts).items;
        let mut times = Vec::new();
        for (pair, item) in laps.events.windows(2).zip(&laps.items) {
            let took = pair[1].since(&pair[0])?;
            let parts = item.map_or(&[][..], |item| &items[item]);
            times.extend(parts.iter().map(|&(node, part)| StepTime {
                plan,
                node,
                kernel: nodes[node].op.name(),
                site: nodes[node].site.clone(),
                wait_ns: 0,
                run_ns: (took as f64 * part) as u64,
            }));
        }
        Ok(times)
    }
}
