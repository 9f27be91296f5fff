//! Simulation: thousands of seeds, each a world of its own. See the crate's docs for how to run more, or one.

#![expect(clippy::print_stdout, reason = "what a run saw is for people")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use millstream_sim::{Call, Edge, Fault, Mutant, Options, Outcome, run};

/// Seeds that every test run tries; `MILLSTREAM_SIM_SEEDS` asks for another number.
const SEEDS: u64 = 2000;
/// After so many failed seeds no more are tried; the one with the smallest history is shown.
const FAILED_MAX: usize = 10;
/// Each mutant must be caught within so many seeds.
const MUTANT_SEEDS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs one seed with a trace and fails if it does.
fn show(seed: u64) {
    let outcome = run(seed, Options { trace: true, ..Options::default() });
    println!("{}", outcome.trace.join("\n"));
    assert!(
        outcome.violations.is_empty(),
        "seed {seed} failed:\n  {}\nto see it again: MILLSTREAM_SIM_SEED={seed} cargo test -p millstream-sim --test sim \
         seeds -- --nocapture",
        outcome.violations.join("\n  ")
    );
}

/// What many seeds came to.
#[derive(Default)]
struct Tally {
    struck: BTreeMap<(Call, Edge, Fault), u64>,
    seen: BTreeMap<&'static str, u64>,
    /// Size and seed.
    failed: Vec<(usize, u64)>,
}

impl Tally {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        if let Some(violation) = outcome.violations.first() {
            println!("seed {seed} ({} events): {violation}", outcome.events);
            self.failed.push((outcome.events, seed));
        }
        outcome.struck.into_iter().for_each(|(step, n)| *self.struck.entry(step).or_default() += n);
        outcome.seen.into_iter().for_each(|(what, n)| *self.seen.entry(what).or_default() += n);
    }

    fn merge(&mut self, other: Tally) {
        self.failed.extend(other.failed);
        other.struck.into_iter().for_each(|(step, n)| *self.struck.entry(step).or_default() += n);
        other.seen.into_iter().for_each(|(what, n)| *self.seen.entry(what).or_default() += n);
    }
}

/// Runs the seeds on all processors.
fn tally(seeds: u64) -> Tally {
    let next = AtomicU64::new(0);
    let some = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds || tally.failed.len() >= FAILED_MAX {
                return tally;
            }
            tally.add(seed, run(seed, Options::default()));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        threads.into_iter().fold(Tally::default(), |mut all, thread| {
            all.merge(thread.join().expect("a seed panicked"));
            all
        })
    })
}

#[test]
fn seeds() {
    if let Some(seed) = number("MILLSTREAM_SIM_SEED") {
        return show(seed);
    }
    let Tally { struck, seen, failed } = tally(number("MILLSTREAM_SIM_SEEDS").unwrap_or(SEEDS));
    if let Some((_, seed)) = failed.iter().min() {
        show(*seed);
    }
    println!("faults: {struck:?}\nseen: {seen:#?}");
    if number("MILLSTREAM_SIM_SEEDS").is_some_and(|seeds| seeds < SEEDS) {
        return;
    }
    // A simulation in which something never happens proves nothing about it.
    for call in Call::ALL {
        for edge in Edge::ALL {
            for fault in [Fault::Crash, Fault::Failure] {
                assert!(struck.contains_key(&(call, edge, fault)), "no {fault:?} struck {edge:?} {call:?}");
            }
        }
    }
    let needed = [
        "late events",
        "duplicates",
        "filled rows",
        "patches",
        "forwards",
        "restarts",
        "drains that failed",
        "checkpoint timeouts",
        "savepoints restored over newer checkpoints",
    ];
    for what in needed {
        assert!(seen.get(what).is_some_and(|n| *n > 0), "there were no {what}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..20 {
        let traced = || run(seed, Options { trace: true, ..Options::default() });
        let (first, second) = (traced(), traced());
        let parted = first.trace.iter().zip(&second.trace).find(|(a, b)| a != b);
        assert_eq!(parted, None, "seed {seed} went two ways");
        assert_eq!(first.digest, second.digest, "seed {seed} went two ways");
    }
}

#[test]
fn mutants_are_caught() {
    for mutant in Mutant::ALL {
        let caught = (0..MUTANT_SEEDS).find_map(|seed| {
            let outcome = run(seed, Options { mutant: Some(mutant), ..Options::default() });
            outcome.violations.into_iter().next().map(|violation| (seed, violation))
        });
        let (seed, violation) =
            caught.unwrap_or_else(|| panic!("{mutant:?} was not caught in {MUTANT_SEEDS} seeds"));
        println!("{mutant:?} was caught by seed {seed}: {violation}");
    }
}
