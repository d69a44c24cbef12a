//! Whether engines move: their steps are counted now and then, and one that has work must have done some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokkata::Figures;

use crate::app::App;

/// How often engines are asked.
const BEAT: Duration = Duration::from_secs(1);

/// When each engine was last seen moving.
#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<HashMap<String, Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Steps that it had done.
    steps: u64,
    /// When it was last seen to do one, or to have nothing to do.
    moved: Instant,
}

impl Pulse {
    fn seen(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an engine has told of itself; `None` where it does not answer any more.
    fn note(&self, model: &str, figures: Option<Figures>) {
        let now = Instant::now();
        let mut seen = self.seen();
        let seen = seen.entry(model.to_owned()).or_insert(Seen {
            steps: 0,
            moved: now,
        });
        let Some(figures) = figures else { return };
        let rests = figures.running == 0 && figures.waiting == 0;
        if rests || figures.steps != seen.steps {
            seen.moved = now;
        }
        seen.steps = figures.steps;
    }

    /// How long the engine that has been still for longest has been so, though it has work.
    pub(crate) fn silence(&self) -> Duration {
        let seen = self.seen();
        let moved = seen.values().map(|seen| seen.moved).min();
        moved.map_or(Duration::ZERO, |moved| moved.elapsed())
    }

    /// Models that are gone have no pulse.
    fn retain(&self, models: &[String]) {
        self.seen().retain(|model, _| models.contains(model));
    }
}

/// Asks every engine now and then, and lets go of models that nobody uses. An engine that does not answer keeps only its
/// own question waiting.
pub(crate) async fn listen(app: Arc<App>) {
    let mut asked: HashMap<String, tokio::task::JoinHandle<()>> = HashMap::new();
    loop {
        let models = app.fleet.here_all();
        let names: Vec<String> = models.iter().map(|m| m.id.clone()).collect();
        app.pulse.retain(&names);
        asked.retain(|_, question| !question.is_finished());
        for model in models {
            if asked.contains_key(&model.id) {
                continue;
            }
            app.pulse.note(&model.id, None);
            let (name, app) = (model.id.clone(), Arc::clone(&app));
            let question = tokio::task::spawn_blocking(move || {
                let figures = model.service.figures().ok();
                app.pulse.note(&model.id, figures);
            });
            asked.insert(name, question);
        }
        tokio::time::sleep(BEAT).await;
        app.fleet.sweep().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_has_work_and_does_none_is_still() {
        let pulse = Pulse::default();
        let told = |steps, running| {
            Some(Figures {
                steps,
                running,
                ..Figures::default()
            })
        };
        assert_eq!(pulse.silence(), Duration::ZERO);
        pulse.note("a", told(1, 1));
        std::thread::sleep(Duration::from_millis(20));
        for still in [told(1, 1), None] {
            pulse.note("a", still);
            assert!(pulse.silence() >= Duration::from_millis(20));
        }
        for moves in [told(2, 1), told(2, 0)] {
            pulse.note("a", moves);
            assert!(pulse.silence() < Duration::from_millis(20));
        }
        pulse.retain(&[]);
        assert_eq!(pulse.silence(), Duration::ZERO);
    }
}
