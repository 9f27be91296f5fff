//! Simulation: thousands of seeds, each a world of its own. See the crate's docs for how to run more, or one.

use std::collections::BTreeMap;

use millstream_sim::{Call, Edge, Fault, Mutant, Outcome, run};

/// Seeds that every test run tries; `MILLSTREAM_SIM_SEEDS` asks for another number.
const SEEDS: u64 = 2000;
/// After so many failed seeds no more are tried; the one with the smallest history is shown.
const FAILED_MAX: usize = 10;
/// Each mutant must be caught within so many seeds.
const MUTANT_SEEDS: u64 = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn command(seed: u64) -> String {
    format!("MILLSTREAM_SIM_SEED={seed} cargo test -p millstream-sim --test sim seeds -- --nocapture")
}

/// Runs the seed again with a trace and fails with it.
fn fail(seed: u64) -> ! {
    let outcome = run(seed, None, true);
    println!("{}", outcome.trace.join("\n"));
    panic!("seed {seed} failed:\n  {}\nto see it again: {}", outcome.violations.join("\n  "), command(seed));
}

#[test]
fn seeds() {
    if let Some(seed) = number("MILLSTREAM_SIM_SEED") {
        let outcome = run(seed, None, true);
        println!("{}", outcome.trace.join("\n"));
        assert!(outcome.violations.is_empty(), "seed {seed} failed:\n  {}", outcome.violations.join("\n  "));
        return;
    }
    let mut struck = BTreeMap::<(Call, Edge, Fault), u64>::new();
    let mut seen = BTreeMap::<&str, u64>::new();
    let mut failed = Vec::new();
    for seed in 0..number("MILLSTREAM_SIM_SEEDS").unwrap_or(SEEDS) {
        let Outcome { violations, struck: hit, seen: saw, events, .. } = run(seed, None, false);
        if let Some(violation) = violations.first() {
            println!("seed {seed} ({events} events): {violation}");
            failed.push((events, seed));
            if failed.len() == FAILED_MAX {
                break;
            }
        }
        hit.into_iter().for_each(|(step, n)| *struck.entry(step).or_default() += n);
        saw.into_iter().for_each(|(what, n)| *seen.entry(what).or_default() += n);
    }
    if let Some((_, seed)) = failed.iter().min() {
        fail(*seed);
    }
    println!("faults: {struck:#?}\nseen: {seen:#?}");
    // A simulation in which something never happens proves nothing about it.
    for call in Call::ALL {
        for edge in Edge::ALL {
            for fault in [Fault::Crash, Fault::Failure] {
                assert!(struck.contains_key(&(call, edge, fault)), "no {fault:?} struck {edge:?} {call:?}");
            }
        }
    }
    for what in
        ["late events", "duplicates", "filled rows", "patches", "forwards", "savepoints restored", "restarts"]
    {
        assert!(seen.get(what).is_some_and(|n| *n > 0), "there were no {what}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..20 {
        let digests = [run(seed, None, true).digest, run(seed, None, true).digest];
        assert_eq!(digests[0], digests[1], "seed {seed} went two ways");
    }
}

#[test]
fn mutants_are_caught() {
    for mutant in Mutant::ALL {
        let caught = (0..MUTANT_SEEDS).find_map(|seed| {
            let outcome = run(seed, Some(mutant), false);
            outcome.violations.into_iter().next().map(|violation| (seed, violation))
        });
        let (seed, violation) =
            caught.unwrap_or_else(|| panic!("{mutant:?} was not caught in {MUTANT_SEEDS} seeds"));
        println!("{mutant:?} was caught by seed {seed}: {violation}");
    }
}
