use std::collections::HashMap;

use super::*;

/// A stream of numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed >> 33) % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

const LEADS: [Lead; 3] = [Lead::Rows, Lead::LogitRows, Lead::Seqs];
const WIDTHS: [usize; 3] = [2, 8, 24];

fn resource(dice: &mut Dice) -> Resource {
    Resource {
        lead: dice.of(&LEADS),
        width: dice.of(&WIDTHS),
        copies: (dice.below(5) == 0).then_some(2),
    }
}

fn shared_resource(dice: &mut Dice) -> Resource {
    Resource {
        copies: None,
        ..resource(dice)
    }
}

/// An instruction that deals its work out in some way, and touches resources as such a one may.
fn instr(dice: &mut Dice, resources: &[Resource], runs: &[usize]) -> Instr<()> {
    let run = dice.of(runs);
    let tiles = dice.of(&[Tiles::Rows, Tiles::Columns(0), Tiles::Own]);
    let own = match tiles {
        Tiles::Rows => Reach::Rows,
        Tiles::Columns(_) => Reach::Columns(run),
        Tiles::Own => Reach::Apart,
    };
    let mut access = |reach| Access::new(dice.below(resources.len()) as u32, reach);
    let made = access(own);
    let reads = vec![access(own), access(Reach::All)];
    let width = resources[made.resource.index()].width;
    let alike = |a: &&Access| resources[a.resource.index()] == resources[made.resource.index()];
    Instr {
        kernel: (),
        over: reads[..1]
            .iter()
            .filter(alike)
            .map(|a| a.resource)
            .collect(),
        tiles: match tiles {
            Tiles::Columns(_) => Tiles::Columns(width.div_ceil(run)),
            other => other,
        },
        // What an instruction writes it does not read in another way.
        reads: reads
            .into_iter()
            .filter(|a| a.resource != made.resource)
            .collect(),
        writes: vec![made],
    }
}

fn random_tape(dice: &mut Dice, runs: &[usize]) -> Tape<()> {
    let resources: Vec<Resource> = (0..6).map(|_| resource(dice)).collect();
    let mut tape = Tape::new(resources);
    for _ in 0..12 {
        let instr = instr(dice, &tape.resources, runs);
        tape.push(instr);
    }
    tape
}

/// Each resource in a memory of its own.
fn scattered<K>(tape: &Tape<K>) -> Vec<Spot> {
    let spot = |(i, r): (usize, &Resource)| Spot {
        memory: i as u32,
        at: 0,
        stride: r.width,
    };
    tape.resources().iter().enumerate().map(spot).collect()
}

/// A plain replay: shares only.
fn events<K>(tape: &Tape<K>, setting: &Setting<'_>) -> Vec<Event> {
    let step = |(at, sync): (usize, &Sync)| {
        let meet = sync
            .holds(|lead| setting.count(lead))
            .then_some(Event::Meet);
        meet.into_iter().chain([Event::Share(at)])
    };
    tape.syncs().iter().enumerate().flat_map(step).collect()
}

/// Whether no element has two users between two meetings one of whom writes: each element by itself.
fn is_free_of_races<K>(tape: &Tape<K>, setting: &Setting<'_>, events: &[Event]) -> bool {
    // Who uses an element, and whether somebody writes it. Shares that may be anyone's are users of their own.
    let mut users: HashMap<(u32, usize), Vec<(usize, bool)>> = HashMap::new();
    for event in events {
        let &Event::Share(at) = event else {
            users.clear();
            continue;
        };
        for (access, writes) in tape.instrs()[at].accesses() {
            let resource = tape.resources()[access.resource.index()];
            let rows = setting.count(resource.lead);
            if resource.copies.is_some_and(|most| rows <= most) {
                continue;
            }
            let spot = setting.spots[access.resource.index()];
            for (row, column) in (0..rows).flat_map(|r| (0..resource.width).map(move |c| (r, c))) {
                let with = users.entry((spot.memory, spot.at + row * spot.stride + column));
                let with = with.or_default();
                let owner = |items: usize, item: usize| {
                    (0..setting.workers).find(|&w| share(items, w, setting.workers).contains(&item))
                };
                let who = match access.reach {
                    Reach::All => (0..setting.workers).collect(),
                    Reach::Rows => vec![owner(rows, row).unwrap()],
                    Reach::Columns(run) => {
                        vec![owner(resource.width.div_ceil(run), column / run).unwrap()]
                    }
                    Reach::Apart => vec![1000 + at],
                };
                with.extend(who.into_iter().map(|w| (w, writes)));
            }
        }
        let clash = |users: &Vec<(usize, bool)>| {
            users
                .iter()
                .any(|&(a, writes)| writes && users.iter().any(|&(b, _)| a != b))
        };
        if users.values().any(clash) {
            return false;
        }
    }
    true
}

fn settings<'a>(dice: &mut Dice, spots: &'a [Spot]) -> [Setting<'a>; 3] {
    std::array::from_fn(|_| Setting {
        workers: 1 + dice.below(4),
        counts: std::array::from_fn(|_| 1 + dice.below(7)),
        spots,
    })
}

#[test]
fn no_two_workers_meet_at_an_element_and_the_proof_knows_when_they_would() {
    let (mut races, mut dice) = (0, Dice(1));
    for round in 0..400 {
        let tape = random_tape(&mut dice, &[1, 4, 6]);
        let spots = scattered(&tape);
        for setting in settings(&mut dice, &spots) {
            let events = events(&tape, &setting);
            assert!(is_free_of_races(&tape, &setting, &events), "{round}");
            assert_eq!(verify(&tape, &setting, &events), Ok(()), "{round}");
            for at in (0..events.len()).filter(|&at| events[at] == Event::Meet) {
                let mut fewer = events.clone();
                fewer.remove(at);
                let free = is_free_of_races(&tape, &setting, &fewer);
                assert_eq!(
                    verify(&tape, &setting, &fewer).is_ok(),
                    free,
                    "{round}: {at}"
                );
                races += usize::from(!free);
            }
        }
    }
    assert!(races > 1000, "{races} races were looked at");
}

/// Rows and columns are many, so that each share is somebody's and those of rows cross those of columns. Without copies:
/// a meeting that only some steps have settles nothing for the others.
#[test]
fn workers_meet_only_where_they_must() {
    let mut dice = Dice(2);
    for round in 0..200 {
        let mut tape = Tape::new((0..6).map(|_| shared_resource(&mut dice)).collect());
        for _ in 0..12 {
            let instr = instr(&mut dice, &tape.resources, &[1]);
            tape.push(instr);
        }
        let spots = scattered(&tape);
        let setting = Setting {
            workers: 2,
            counts: [6; 3],
            spots: &spots,
        };
        let events = events(&tape, &setting);
        for at in (0..events.len()).filter(|&at| events[at] == Event::Meet) {
            let mut fewer = events.clone();
            fewer.remove(at);
            assert!(
                verify(&tape, &setting, &fewer).is_err(),
                "{round}: meeting {at} for nothing"
            );
        }
    }
}

/// Every resource in one memory, as small as lives allow.
#[test]
fn memory_is_used_again_only_when_nobody_looks() {
    let (mut dice, mut shared, mut made_over) = (Dice(3), 0, 0);
    for round in 0..400 {
        let tape = single_assignment(&mut dice);
        let outputs = [ResourceId(tape.resources.len() as u32 - 1)];
        let lives = tape.lives(&[ResourceId(0)], &outputs);
        let over = tape.over();
        made_over += over.iter().flatten().count();
        let sizes: Vec<usize> = tape.resources.iter().map(|r| 7 * r.width).collect();
        let (starts, total) = place(&sizes, &lives, &over);
        shared += usize::from(total < sizes.iter().sum());
        let spots: Vec<Spot> = scattered(&tape)
            .into_iter()
            .zip(starts)
            .map(|(spot, at)| Spot {
                memory: 0,
                at,
                ..spot
            })
            .collect();
        for setting in settings(&mut dice, &spots) {
            let events = events(&tape, &setting);
            assert!(is_free_of_races(&tape, &setting, &events), "{round}");
            assert_eq!(verify(&tape, &setting, &events), Ok(()), "{round}");
        }
    }
    assert!(shared > 300 && made_over > 50, "{shared}, {made_over}");
}

/// A tape of values, each written once, before it is read.
fn single_assignment(dice: &mut Dice) -> Tape<()> {
    let mut tape = Tape::new(vec![shared_resource(dice)]);
    for _ in 0..12 {
        let new = shared_resource(dice);
        let mut instr = instr(dice, &tape.resources, &[1, 4]);
        let made = tape.add(new);
        let reach = instr.writes[0].reach;
        instr.writes[0] = Access {
            resource: made,
            reach,
        };
        if let Reach::Columns(run) = reach {
            instr.tiles = Tiles::Columns(new.width.div_ceil(run));
        }
        let own = instr
            .reads
            .iter()
            .filter(|r| r.reach == reach && reach != Reach::Apart);
        let alike = own.filter(|r| tape.resources[r.resource.index()] == new);
        instr.over = alike.map(|r| r.resource).collect();
        tape.push(instr);
    }
    tape
}

/// The portions of all runs, each of a run of columns through a lane.
fn by_parts(tape: &Tape<()>, setting: &Setting<'_>) -> (Vec<Event>, usize) {
    let (mut events, mut at, mut long) = (Vec::new(), 0, 0);
    let runs = tape.runs();
    while at < tape.instrs().len() {
        if tape.syncs()[at].holds(|lead| setting.count(lead)) {
            events.push(Event::Meet);
        }
        let Some(run) = runs.iter().find(|run| run.instrs.start == at) else {
            events.push(Event::Share(at));
            at += 1;
            continue;
        };
        let portions = run.lanes.iter().flat_map(|lane| {
            let Tiles::Columns(parts) = tape.instrs()[lane[0]].tiles else {
                panic!("a lane of instructions that deal out columns");
            };
            (0..parts).map(|part| Portion {
                instrs: lane.clone(),
                parts: part..part + 1,
                columns: None,
            })
        });
        events.push(Event::Round(portions.collect()));
        long += usize::from(run.instrs.len() > 1);
        at = run.instrs.end;
    }
    (events, long)
}

#[test]
fn runs_may_be_done_part_by_part_by_anyone() {
    let (mut dice, mut long) = (Dice(4), 0);
    for round in 0..600 {
        let tape = single_assignment(&mut dice);
        let lives = tape.lives(&[ResourceId(0)], &[]);
        let sizes: Vec<usize> = tape.resources.iter().map(|r| 7 * r.width).collect();
        let (starts, _) = place(&sizes, &lives, &tape.over());
        let spots: Vec<Spot> = scattered(&tape)
            .into_iter()
            .zip(starts)
            .map(|(spot, at)| Spot {
                memory: 0,
                at,
                ..spot
            })
            .collect();
        for setting in settings(&mut dice, &spots) {
            let (events, found) = by_parts(&tape, &setting);
            assert_eq!(verify(&tape, &setting, &events), Ok(()), "{round}");
            long += found;
        }
    }
    assert!(long > 100, "{long} runs of more than one instruction");
}

#[test]
fn work_that_is_left_out_done_twice_or_done_too_early_is_found() {
    let value = Resource {
        lead: Lead::Rows,
        width: 8,
        copies: None,
    };
    let mut tape = Tape::new(vec![value; 3]);
    for (from, to) in [(0, 1), (1, 2)] {
        tape.push(Instr {
            kernel: (),
            reads: vec![Access::new(from, Reach::Columns(4))],
            writes: vec![Access::new(to, Reach::Columns(4))],
            tiles: Tiles::Columns(2),
            over: vec![],
        });
    }
    let spots = scattered(&tape);
    let setting = Setting {
        workers: 2,
        counts: [3; 3],
        spots: &spots,
    };
    let portion = |instrs: &[usize], parts| Portion {
        instrs: instrs.to_vec(),
        parts,
        columns: None,
    };
    let checked = |events: &[Event]| verify(&tape, &setting, events);
    let halves = |a, b| [Event::Round(vec![portion(a, 0..1), portion(b, 1..2)])];
    assert_eq!(checked(&halves(&[0, 1], &[0, 1])), Ok(()));
    let missed = Clash::Coverage {
        instr: 1,
        done: 1,
        parts: 2,
    };
    assert_eq!(checked(&halves(&[0, 1], &[0])), Err(missed));
    let early = Clash::Order { late: 0, early: 1 };
    assert_eq!(checked(&halves(&[0, 1], &[1, 0])), Err(early.clone()));
    assert_eq!(
        checked(&[Event::Share(1), Event::Meet, Event::Share(0)]),
        Err(early)
    );
    let twice = [Event::Round(vec![
        portion(&[0, 1], 0..2),
        portion(&[0, 1], 1..2),
    ])];
    assert!(matches!(
        checked(&twice),
        Err(Clash::Race {
            first: 0,
            second: 0,
            ..
        })
    ));
}

#[test]
fn a_run_has_rows_of_one_lead() {
    let value = |lead| Resource {
        lead,
        width: 8,
        copies: None,
    };
    let leads = [Lead::Rows, Lead::Rows, Lead::LogitRows];
    let mut tape = Tape::new(leads.map(value).to_vec());
    for made in 0..3 {
        tape.push(Instr {
            kernel: (),
            reads: vec![],
            writes: vec![Access::new(made, Reach::Columns(4))],
            tiles: Tiles::Columns(2),
            over: vec![],
        });
    }
    assert_eq!(tape.runs(), [], "of two leads");
    tape.instrs.pop();
    tape.syncs.pop();
    let lanes = vec![vec![0], vec![1]];
    let run = |instrs, lead, lanes| Run {
        instrs,
        lead,
        lanes,
    };
    assert_eq!(tape.runs(), [run(0..2, Lead::Rows, lanes)]);
}
