//! Choices of kernels, measured on the machine at hand. None changes a result but the set with tiles, which quantises
//! or splits activations for some formats.
//!
//! A tuning is text of the form `set=avx512 few=avx2 stream=8 group=192 fetch=l1:4096 single=none near=l2 wide=yes`, so that it can be kept in a file.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use tokkata_core::DType;

use crate::available::available_bytes;
use crate::busy;
use crate::caps::{Caps, Level, Processor};
use crate::kernels::{Activations, Kernel, MAX_STREAM_ROWS, MOST_SINGLE, Scratch, Store};
use crate::layout::{LayoutError, Matrix, Order, Part};
use crate::pool::Pool;

/// How stored panels are fetched before they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    /// Not at all: the processor asks for what follows by itself.
    #[default]
    Nothing,
    /// So many bytes ahead, into the first-level cache.
    First(usize),
    /// So many bytes ahead, into the second-level cache.
    Second(usize),
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fetch::Nothing => f.write_str("none"),
            Fetch::First(bytes) => write!(f, "l1:{bytes}"),
            Fetch::Second(bytes) => write!(f, "l2:{bytes}"),
        }
    }
}

impl Fetch {
    fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Fetch::Nothing);
        }
        let (level, bytes) = text.split_once(':')?;
        let bytes = bytes.parse().ok().filter(|&b| b <= MOST_AHEAD)?;
        match level {
            "l1" => Some(Fetch::First(bytes)),
            "l2" => Some(Fetch::Second(bytes)),
            _ => None,
        }
    }
}

/// The cache that a hint brings lines into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Near {
    /// The first-level cache.
    #[default]
    First,
    /// The second-level cache.
    Second,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Near::First => "l1",
            Near::Second => "l2",
        })
    }
}

impl Near {
    fn parse(text: &str) -> Option<Self> {
        [Near::First, Near::Second]
            .into_iter()
            .find(|near| near.to_string() == text)
    }
}

/// More than any cache holds.
const MOST_AHEAD: usize = 1 << 20;

/// The choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The kernel set.
    pub set: Level,
    /// The set that multiplies as many rows as are streamed, one that gives the same bits.
    pub few: Level,
    /// Rows up to which stored panels are streamed rather than unpacked first.
    pub stream_rows: usize,
    /// KiB of unpacked panels that stay in cache.
    pub group_kib: usize,
    /// How panels are fetched.
    pub fetch: Fetch,
    /// How panels are fetched for rows so few that they wait for memory alone.
    pub single: Fetch,
    /// The cache into which attention fetches the keys and values that follow those at work.
    pub near: Near,
    /// Whether stored panels that few rows stream meet as many columns at once as registers allow, rather than a few:
    /// they are unpacked less often.
    pub wide: bool,
}

impl Tuning {
    /// What is used on a machine that was not measured: what suits its family of processors.
    #[must_use]
    pub fn usual(set: Level) -> Self {
        Self::of(set, Processor::detect())
    }

    /// What suits a family of processors.
    #[must_use]
    pub const fn of(set: Level, processor: Processor) -> Self {
        let plain = Tuning {
            set,
            few: set,
            stream_rows: 8,
            group_kib: 384,
            fetch: Fetch::Second(16 << 10),
            single: Fetch::Second(16 << 10),
            near: Near::First,
            wide: false,
        };
        let amd = Tuning {
            group_kib: 192,
            fetch: Fetch::First(4 << 10),
            single: Fetch::Nothing,
            ..plain
        };
        match processor {
            Processor::Zen4 => Tuning {
                near: Near::Second,
                wide: true,
                ..amd
            },
            Processor::Zen5 => Tuning {
                fetch: Fetch::First(8 << 10),
                single: Fetch::First(4 << 10),
                wide: true,
                ..amd
            },
            Processor::Zen3 => Tuning {
                single: Fetch::First(2 << 10),
                near: Near::Second,
                ..amd
            },
            Processor::Amd => amd,
            Processor::Other => plain,
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning {
            set,
            few,
            stream_rows,
            group_kib,
            fetch,
            single,
            near,
            wide,
        } = self;
        let wide = if *wide { "yes" } else { "no" };
        let (set, few) = (set.name(), few.name());
        write!(
            f,
            "set={set} few={few} stream={stream_rows} group={group_kib} fetch={fetch} single={single} near={near} wide={wide}"
        )
    }
}

/// A text that is no tuning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found '{0}', expected kernel choices such as 'set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=no'; \
     run `tokkata tune` again"
)]
pub struct TuningError(String);

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let wrong = || TuningError(text.to_owned());
        let mut tuning = Tuning::usual(Level::Portable);
        let mut seen = 0;
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<usize>().map_err(|_| wrong());
            match name {
                "set" => tuning.set = level(value).ok_or_else(wrong)?,
                "few" => tuning.few = level(value).ok_or_else(wrong)?,
                "fetch" => tuning.fetch = Fetch::parse(value).ok_or_else(wrong)?,
                "single" => tuning.single = Fetch::parse(value).ok_or_else(wrong)?,
                "near" => tuning.near = Near::parse(value).ok_or_else(wrong)?,
                "wide" => tuning.wide = yes_or_no(value).ok_or_else(wrong)?,
                "stream" => tuning.stream_rows = number()?,
                "group" => tuning.group_kib = number()?,
                _ => return Err(wrong()),
            }
            seen += 1;
        }
        let fits = tuning.few.agrees_with(tuning.set)
            && (1..=MAX_STREAM_ROWS).contains(&tuning.stream_rows)
            && (1..=1 << 20).contains(&tuning.group_kib);
        if seen == 8 && fits {
            Ok(tuning)
        } else {
            Err(wrong())
        }
    }
}

fn yes_or_no(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn level(name: &str) -> Option<Level> {
    Level::ALL.into_iter().find(|l| l.name() == name)
}

/// One measured choice: what was tried and multiply–adds per second.
pub type Report<'a> = &'a mut dyn FnMut(&str, f64);

/// Shape of the product that is measured in cache: a feed-forward matrix of a small model.
const SHAPE: (usize, usize) = (3072, 1024);
/// Outputs of a product that is read from memory.
const LONG_ROWS: usize = 1 << 18;
/// No more than this part of the memory that is left.
const SHARE_OF_MEMORY: u64 = 16;
/// Rows of a prompt.
const PROMPT: usize = 192;
const GROUPS: [usize; 5] = [96, 192, 384, 768, 1536];
const FETCHES: [Fetch; 6] = [
    Fetch::Nothing,
    Fetch::First(2 << 10),
    Fetch::First(4 << 10),
    Fetch::First(8 << 10),
    Fetch::Second(4 << 10),
    Fetch::Second(16 << 10),
];
/// Measurements of one choice, at least and at most; the best counts.
const ROUNDS: (usize, usize) = (5, 40);
/// The best of a choice is certain when it was seen so often, within this part.
const SEEN: usize = 3;
const ALIKE: f64 = 1.02;
/// How long it is looked whether others want the cores, and the share of their time that they may have.
const LOOK: Duration = Duration::from_millis(200);
const QUIET: f64 = 0.05;
/// How long a quick check may take.
const QUICK: Duration = Duration::from_secs(3);
/// A choice must be this much faster than the one before it: differences below are chance.
const MARGIN: f64 = 1.03;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A worker failed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Other programs run.
    #[error(
        "this machine is busy: other programs have {0} % of the time of the cores that would be measured; \
         end them, or give fewer threads (-t), and run `tokkata tune` again"
    )]
    Busy(u32),
    /// Times differ too much from one another.
    #[error(
        "what was measured does not come again: something else uses this machine; run `tokkata tune` again when it is idle"
    )]
    Unsettled,
}

/// Whether so many threads have their cores to themselves.
fn quiet(threads: usize) -> Result<(), MeasureError> {
    let others = busy::share(threads, LOOK);
    if others <= QUIET {
        return Ok(());
    }
    Err(MeasureError::Busy((100.0 * others).round() as u32))
}

/// Measures the choices one after the other, with `threads` threads, each until its best has come again.
///
/// # Errors
/// When the machine is busy, before or after; when times do not settle; when a worker fails.
pub fn measure(threads: usize, report: Report<'_>) -> Result<Tuning, MeasureError> {
    quiet(threads)?;
    let bench = Bench::new(threads, SHAPE.0)?;
    let tuning = all(&bench, &Bench::long(threads)?, report)?;
    if !bench.settled.get() {
        return Err(MeasureError::Unsettled);
    }
    quiet(threads)?;
    Ok(tuning)
}

fn all(bench: &Bench, long: &Bench, report: Report<'_>) -> Result<Tuning, LayoutError> {
    // The usual choice comes first: others must beat it. Plain Rust is tried only where there is nothing else.
    let mut tuning = bench.best(PROMPT, sets(), report)?;
    tuning = bench.best(PROMPT, others_last(tuning, groups(tuning)), report)?;
    for rows in (2..=MAX_STREAM_ROWS).rev() {
        let [unpacked, streamed] = [rows - 1, rows].map(|stream_rows| Tuning {
            stream_rows,
            ..tuning
        });
        tuning = bench.best(rows, vec![unpacked, streamed], report)?;
        if tuning == streamed {
            break;
        }
    }
    let fetches = FETCHES.map(|fetch| Tuning { fetch, ..tuning });
    let rows = tuning.stream_rows.max(MOST_SINGLE + 1);
    let tuning = long.best(rows, others_last(tuning, fetches.to_vec()), report)?;
    let tuning = single(tuning, long, report)?;
    bench.settled.set(bench.settled.get() && long.settled.get());
    Ok(tuning)
}

/// A quick check of what one row depends on, the most of what processors differ in: the usual choice, unless another is
/// faster by more than a margin twice, and times settle within a few seconds. `None` while other programs have cores that
/// would be measured: nothing is known of the machine then.
///
/// # Errors
/// When a worker fails.
pub fn check(threads: usize) -> Result<Option<Tuning>, LayoutError> {
    check_among(busy::idle_cores(threads), threads, QUICK)
}

/// The same where so many cores are idle, as far as the system tells, within a time.
fn check_among(
    idle: Option<usize>,
    threads: usize,
    time: Duration,
) -> Result<Option<Tuning>, LayoutError> {
    if idle.is_some_and(|idle| idle < threads) {
        return Ok(None);
    }
    let until = Instant::now() + time;
    let usual = Tuning::usual(Caps::detect().level());
    let bench = Bench {
        until: Some(until),
        ..Bench::long(threads)?
    };
    let found = single(usual, &bench, &mut |_, _| {})?;
    let found = bench.best(1, vec![usual, found], &mut |_, _| {})?;
    Ok(Some(if bench.settled.get() { found } else { usual }))
}

/// `tuning` with what suits one row that reads weights from memory.
fn single(tuning: Tuning, bench: &Bench, report: Report<'_>) -> Result<Tuning, LayoutError> {
    let fetches = FETCHES.map(|single| Tuning { single, ..tuning });
    let tuning = bench.best(1, others_last(tuning, fetches.to_vec()), report)?;
    let agree = |t: &Tuning| t.few.agrees_with(tuning.set);
    let few = sets().into_iter().map(|t| Tuning {
        few: t.set,
        ..tuning
    });
    bench.best(1, others_last(tuning, few.filter(agree).collect()), report)
}

/// The usual choices with each set of this machine, the best set first; plain Rust only where there is nothing else.
fn sets() -> Vec<Tuning> {
    let usual = Caps::detect();
    let fast = |c: &Caps| *c != usual && c.level() > Level::Portable;
    let sets = std::iter::once(usual).chain(Caps::all().into_iter().filter(fast));
    sets.map(|caps| Tuning::usual(caps.level())).collect()
}

fn groups(tuning: Tuning) -> Vec<Tuning> {
    GROUPS
        .map(|group_kib| Tuning {
            group_kib,
            ..tuning
        })
        .to_vec()
}

/// `first`, then the others.
fn others_last(first: Tuning, all: Vec<Tuning>) -> Vec<Tuning> {
    let others = all.into_iter().filter(|t| *t != first);
    std::iter::once(first).chain(others).collect()
}

/// Seconds of one choice.
#[derive(Debug, Default)]
struct Times(Vec<f64>);

impl Times {
    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::MAX, f64::min)
    }

    /// Whether the least time came again and again.
    fn settled(&self) -> bool {
        let limit = ALIKE * self.least();
        self.0.iter().filter(|&&time| time <= limit).count() >= SEEN
    }
}

struct Bench {
    pool: Pool,
    matrix: Matrix,
    /// Whether the best times of all choices came again.
    settled: Cell<bool>,
    /// When what has not settled is given up.
    until: Option<Instant>,
}

impl Bench {
    /// A matrix with so many outputs.
    fn new(threads: usize, rows: usize) -> Result<Self, LayoutError> {
        let pool = Pool::new(threads);
        let dtype = DType::Q4_K;
        let parts = [Part { dtype, rows }];
        let source = |_: usize, _: std::ops::Range<usize>, to: &mut [u8]| {
            // Small scales, any codes.
            to.iter_mut()
                .enumerate()
                .for_each(|(i, b)| *b = (i * 37 % 251) as u8 & 0x3b);
            Ok(())
        };
        let matrix = Matrix::pack(&pool, SHAPE.1, &parts, Order::Sequential, &source)?;
        Ok(Bench {
            pool,
            matrix,
            settled: Cell::new(true),
            until: None,
        })
    }

    /// A matrix that no cache holds, if there is memory for it.
    fn long(threads: usize) -> Result<Self, LayoutError> {
        let room = available_bytes().map_or(u64::MAX, |b| b / SHARE_OF_MEMORY);
        let row = DType::Q4_K.row_bytes(SHAPE.1).unwrap_or(SHAPE.1) as u64;
        let rows = usize::try_from(room / row).unwrap_or(LONG_ROWS);
        Self::new(threads, rows.clamp(SHAPE.0, LONG_ROWS))
    }

    /// The fastest of some choices for this many rows, an earlier one unless a later one is clearly faster.
    fn best(
        &self,
        rows: usize,
        choices: Vec<Tuning>,
        report: Report<'_>,
    ) -> Result<Tuning, LayoutError> {
        let mut rated: Vec<_> = choices.into_iter().map(|c| (c, Times::default())).collect();
        for round in 1..=ROUNDS.1 {
            if self.until.is_some_and(|until| Instant::now() > until) {
                self.settled.set(false);
                return Ok(rated[0].0);
            }
            for (tuning, times) in &mut rated {
                times.0.push(self.time(rows, *tuning)?.as_secs_f64());
            }
            if round >= ROUNDS.0 && rated.iter().all(|(_, times)| times.settled()) {
                break;
            }
        }
        let settled = rated.iter().all(|(_, times)| times.settled());
        self.settled.set(self.settled.get() && settled);
        let work = (rows * self.matrix.rows() * SHAPE.1) as f64;
        let mut best = (rated[0].0, rated[0].1.least());
        for (tuning, times) in &rated {
            let least = times.least();
            report(&format!("{rows} rows, {tuning}"), work / least);
            if least * MARGIN < best.1 {
                best = (*tuning, least);
            }
        }
        Ok(best.0)
    }

    /// Time of a product on all workers.
    fn time(&self, rows: usize, tuning: Tuning) -> Result<Duration, LayoutError> {
        let caps = Caps::limited_to(tuning.set.name());
        let kernel = caps.ok().and_then(|caps| Kernel::new(&caps));
        let kernel = kernel
            .expect("only sets of this machine are tried")
            .tuned(&tuning);
        let (n, k) = (self.matrix.rows(), SHAPE.1);
        let mut x = Activations::default();
        let writer = x.begin(rows, k, kernel.forms(&self.matrix));
        let row: Vec<f32> = (0..k).map(|i| (i * 29 % 63) as f32 - 31.0).collect();
        // SAFETY: one thread writes, and none reads yet.
        (0..rows).for_each(|r| unsafe { writer.write(&kernel, r, &row) });
        let mut y = vec![0.0; rows * n];
        // SAFETY: workers take disjoint panels.
        let store = unsafe { Store::new(&mut y, n) };
        let start = Instant::now();
        let matrix = &self.matrix;
        self.pool.run(&|worker| {
            let panels = matrix.share(worker.index(), worker.count());
            let (mut store, mut scratch) = (store, Scratch::default());
            kernel.matmul(matrix, &x, panels.clone(), &mut scratch, &mut store);
        })?;
        Ok(start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_survives_its_text() {
        let tuning = Tuning {
            set: Level::Avx512,
            few: Level::Avx2,
            stream_rows: 5,
            group_kib: 768,
            fetch: Fetch::First(4096),
            single: Fetch::Nothing,
            near: Near::Second,
            wide: true,
        };
        let text =
            "set=avx512 few=avx2 stream=5 group=768 fetch=l1:4096 single=none near=l2 wide=yes";
        assert_eq!(tuning.to_string(), text);
        assert_eq!(tuning.to_string().parse(), Ok(tuning));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "set=avx2",
            "set=mmx few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=mmx stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=amx stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=0 group=384 fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=13 group=384 fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=8 group=x fetch=l1:4096 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l3:4096 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4000000 single=none near=l1 wide=no",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=no more",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=l1 near=l1 wide=no",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l3 wide=no",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l1 wide=1",
            "set=avx2 few=avx2 stream=8 group=384 fetch=l1:4096 single=none near=l1",
        ] {
            assert!(text.parse::<Tuning>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_family_has_its_own_way_to_fetch() {
        let of = |processor| {
            let tuning = Tuning::of(Level::Avx512, processor);
            let Tuning {
                fetch,
                single,
                near,
                wide,
                ..
            } = tuning;
            format!("{fetch} {single} {near} {wide}")
        };
        assert_eq!(of(Processor::Zen3), "l1:4096 l1:2048 l2 false");
        assert_eq!(of(Processor::Zen4), "l1:4096 none l2 true");
        assert_eq!(of(Processor::Zen5), "l1:8192 l1:4096 l1 true");
        assert_eq!(of(Processor::Amd), "l1:4096 none l1 false");
        assert_eq!(of(Processor::Other), "l2:16384 l2:16384 l1 false");
    }

    #[test]
    fn few_rows_run_on_another_set_only_if_bits_agree() {
        let all = Caps::all();
        let kernels = all.iter().filter_map(Kernel::new);
        for kernel in kernels {
            for few in &all {
                let tuning = Tuning {
                    few: few.level(),
                    ..Tuning::usual(kernel.level())
                };
                let agree = few.level().agrees_with(kernel.level());
                let used = kernel.tuned(&tuning).level_for(1);
                let expected = if agree { few.level() } else { kernel.level() };
                assert_eq!(used, expected);
                assert_eq!(kernel.tuned(&tuning).level_for(9), kernel.level());
            }
        }
    }

    #[test]
    fn a_busy_machine_is_not_measured() {
        // More threads than cores are a busy machine.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let error = measure(4 * cores, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, MeasureError::Busy(50..)), "{error}");
        assert!(error.to_string().starts_with("this machine is busy"));
    }

    #[test]
    fn a_time_counts_when_it_came_again() {
        assert!(!Times(vec![1.0, 1.5, 1.4, 1.3, 1.2]).settled());
        assert!(!Times(vec![1.0, 1.01, 1.4, 1.3, 1.2]).settled());
        assert!(Times(vec![1.4, 1.0, 1.3, 1.01, 1.015]).settled());
    }

    #[test]
    fn the_quick_check_changes_only_what_one_row_depends_on() {
        let found = check_among(None, 1, Duration::from_secs(60));
        let found = found.unwrap().expect("nobody is known to be busy");
        let usual = Tuning::usual(Caps::detect().level());
        let Tuning { few, single, .. } = found;
        assert_eq!(
            found,
            Tuning {
                few,
                single,
                ..usual
            }
        );
    }

    #[test]
    fn the_quick_check_leaves_a_busy_machine_alone_and_ends_in_time() {
        let usual = Tuning::usual(Caps::detect().level());
        let start = Instant::now();
        assert_eq!(check_among(Some(1), 2, QUICK).unwrap(), None);
        assert!(start.elapsed() < Duration::from_millis(100));
        // A machine that others use from then on: what was not measured is as usual.
        let late = check_among(Some(2), 1, Duration::ZERO).unwrap();
        assert_eq!(late, Some(usual));
    }

    #[test]
    fn measuring_gives_a_set_of_this_machine() {
        let mut tried = 0;
        // Not by `measure`: other tests may keep the machine busy.
        let bench = Bench::new(1, SHAPE.0).unwrap();
        let report: Report<'_> = &mut |_, rate| tried += usize::from(rate > 0.0);
        let tuning = all(&bench, &Bench::long(1).unwrap(), report).unwrap();
        assert!(Caps::limited_to(tuning.set.name()).is_ok());
        assert!(tried >= GROUPS.len() + 3, "{tried}");
        assert_eq!(tuning.to_string().parse(), Ok(tuning));
    }
}
