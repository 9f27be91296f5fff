//! Unchanged large values against a table that behaves as PostgreSQL's.

use super::*;
use proptest::prelude::*;

/// Longer values are stored out of line, and their rows are larger than [`TARGET`].
const LONG: usize = 300;
const TARGET: usize = 200;

fn articles() -> Arc<RowSchema> {
    table(&[("id", Type::Int64), ("n", Type::Int64), ("body", Type::Text), ("doc", Type::Text)])
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Insert,
    Touch,
    Set { column: usize, long: u8 },
    Delete,
    Rename,
    Truncate,
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let act = prop_oneof![
        3 => Just(Act::Insert),
        6 => Just(Act::Touch),
        4 => (0..2usize, 0..4u8).prop_map(|(column, long)| Act::Set { column, long }),
        1 => Just(Act::Delete),
        2 => Just(Act::Rename),
    ];
    let act = prop_oneof![30 => act, 1 => Just(Act::Truncate)];
    prop::collection::vec((0..4i64, act), 1..80)
}

#[derive(Clone)]
struct Article {
    n: i64,
    texts: [Option<String>; 2],
}

/// A source table: its rows now, and the events of what happened to it.
struct Source {
    schema: Arc<RowSchema>,
    rows: BTreeMap<i64, Article>,
    /// Keys that a key change left.
    left: BTreeSet<i64>,
    /// Whether they are used again, which not every order of arrival allows (see the limit in `resolve`).
    reuse: bool,
    events: Vec<Event>,
    lsn: u64,
    next_key: i64,
}

impl Source {
    fn new() -> Self {
        Self {
            schema: articles(),
            rows: BTreeMap::new(),
            left: BTreeSet::new(),
            reuse: false,
            events: Vec::new(),
            lsn: 100,
            next_key: 10,
        }
    }

    fn text(&self, long: u8) -> Option<String> {
        let word = format!("v{}", self.lsn);
        match long {
            0 => None,
            1 => Some(word),
            _ => Some(word.repeat(LONG / 4)),
        }
    }

    fn push(&mut self, op: Op, id: i64, before: Option<&Article>) {
        let article = &self.rows[&id];
        let cell = |i: usize| match &article.texts[i] {
            None => Value::Null,
            Some(text) if text.len() >= LONG && before.is_some_and(|b| b.texts[i] == article.texts[i]) => {
                Value::Unchanged
            }
            Some(text) => Value::Text(text),
        };
        let row = row(&[Value::Int(id), Value::Int(article.n), cell(0), cell(1)]);
        self.events.push(event(&self.schema, op, Some(key(id)), self.lsn - 5, self.lsn, row));
    }

    fn delete(&mut self, id: i64) {
        let row = row(&[Value::Int(id), Value::Null, Value::Null, Value::Null]);
        self.events.push(event(&self.schema, Op::Delete, Some(key(id)), self.lsn - 5, self.lsn, row));
    }

    fn act(&mut self, id: i64, act: Act) {
        self.lsn += 10;
        // Acts on a key that a rename left go to a key that is alive.
        let gone = |id: &i64| !self.reuse && self.left.contains(id);
        let id = if gone(&id) { self.rows.keys().next().copied().unwrap_or(id) } else { id };
        let before = self.rows.get(&id).cloned();
        match (act, before) {
            (Act::Insert, None) if self.reuse || !self.left.contains(&id) => {
                let texts = [self.text((self.lsn / 10 % 3) as u8), self.text((self.lsn / 10 % 4) as u8)];
                self.rows.insert(id, Article { n: 0, texts });
                self.push(Op::Create, id, None);
            }
            (Act::Touch, Some(before)) => {
                self.rows.get_mut(&id).unwrap().n += 1;
                self.push(Op::Update, id, Some(&before));
            }
            (Act::Set { column, long }, Some(before)) => {
                let text = self.text(long);
                self.rows.get_mut(&id).unwrap().texts[column] = text;
                self.push(Op::Update, id, Some(&before));
            }
            (Act::Delete, Some(_)) => {
                self.rows.remove(&id);
                self.delete(id);
            }
            (Act::Rename, Some(before)) => {
                let back = self.left.iter().copied().find(|to| self.reuse && !self.rows.contains_key(to));
                let to = back.unwrap_or(self.next_key);
                self.next_key += i64::from(back.is_none());
                self.rows.remove(&id);
                self.left.insert(id);
                self.delete(id);
                self.events.last_mut().unwrap().new_key = Some(key(to));
                self.rows.insert(to, before.clone());
                self.push(Op::Create, to, Some(&before));
                self.events.last_mut().unwrap().old_key = Some(key(id));
            }
            (Act::Truncate, _) => {
                self.rows.clear();
                let cut = event(&self.schema, Op::Truncate, None, self.lsn - 5, self.lsn, Row::default());
                self.events.push(cut);
            }
            _ => {}
        }
    }

    fn replica(&self) -> BTreeMap<Key, Vec<String>> {
        let cells = |(id, a): (&i64, &Article)| {
            let text =
                |t: &Option<String>| format!("{:?}", t.as_ref().map_or(Value::Null, |t| Value::Text(t)));
            (
                key(*id),
                vec![
                    format!("{:?}", Value::Int(*id)),
                    format!("{:?}", Value::Int(a.n)),
                    text(&a.texts[0]),
                    text(&a.texts[1]),
                ],
            )
        };
        self.rows.iter().map(cells).collect()
    }
}

fn source(acts: &[(i64, Act)], reuse: bool) -> Source {
    let mut source = Source { reuse, ..Source::new() };
    acts.iter().for_each(|&(id, act)| source.act(id, act));
    source
}

fn config(mode: Mode, cache_bytes: usize) -> GateConfig {
    GateConfig { mode, cache_bytes, toast_tuple_target: TARGET, ..GateConfig::default() }
}

fn rows(world: &World) -> BTreeMap<Key, Vec<String>> {
    world.ledger.replica.iter().map(|(key, (_, row))| (key.clone(), row.clone())).collect()
}

proptest! {
    #[test]
    fn the_replica_is_the_table_whatever_arrives_first(
        acts in acts(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        window in prop_oneof![Just(1usize), Just(5), Just(50), Just(1000)],
        steps in steps(),
        shards in 1..5usize,
        cache_bytes in prop_oneof![Just(0usize), Just(1 << 20)],
    ) {
        // In order, whatever the forwards do, keys can be used again: swapped, above all.
        let source = source(&acts, window == 1);
        let events = &source.events;
        let stream = deliveries(events.len(), window, &seed).into_iter().map(|i| events[i].clone()).collect();
        let mut world = World::new(config(Mode::Exact, cache_bytes), stream, shards);
        world.run(&steps);
        prop_assert_eq!(rows(&world), source.replica());
        prop_assert!(world.ledger.history.values().all(|orders| orders.len() == 1));
        world.check_counters();
    }

    /// Rows that come again brought no values that state has, so that a replica took older ones, or none.
    #[test]
    fn a_sink_that_refused_everything_has_it_all_when_it_comes_again(
        acts in acts(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        window in prop_oneof![Just(1usize), Just(5), Just(1000)],
        steps in steps(),
        shards in 1..5usize,
        cache_bytes in prop_oneof![Just(0usize), Just(1 << 20)],
        mode in prop_oneof![Just(Mode::Exact), Just(Mode::Latest)],
    ) {
        let window = if mode == Mode::Latest { 1 } else { window };
        let source = source(&acts, window == 1);
        let events = &source.events;
        let arrival = deliveries(events.len(), window, &seed);
        let stream = arrival.iter().map(|&i| events[i].clone()).collect();
        let mut world = World::new(config(mode, cache_bytes), stream, shards);
        world.run(&steps);
        let accepted = std::mem::take(&mut world.ledger);
        let state = world.memory.0.lock().unwrap().clone();
        // No sink refuses a truncate.
        let refused: BTreeSet<usize> = arrival.into_iter().filter(|&i| events[i].op != Op::Truncate).collect();
        for &i in refused.iter().rev() {
            world.again(&events[i]);
        }
        let refused_state = world.memory.0.lock().unwrap().clone();
        prop_assert_eq!(rows(&world), source.replica());
        prop_assert_eq!(world.ledger.patches, 0);
        if mode == Mode::Exact {
            let rows_of = |ledger: &Ledger| {
                let mut rows = ledger.history.clone();
                rows.retain(|(key, _), _| key.is_some());
                rows
            };
            prop_assert_eq!(rows_of(&world.ledger), rows_of(&accepted));
        }
        world.barrier();
        world.commit();
        prop_assert_eq!(&refused_state, &state);
        prop_assert_eq!(&*world.memory.0.lock().unwrap(), &state, "state learns nothing");
        let counters = &world.ledger.counters;
        prop_assert_eq!((counters.distinct, counters.duplicates), (0, refused.len() as u64));
    }

    #[test]
    fn in_order_nothing_is_unresolved_or_left_behind(
        acts in acts(),
        steps in steps(),
        mode in prop_oneof![Just(Mode::Exact), Just(Mode::Latest)],
    ) {
        let mut source = source(&acts, true);
        let mut world = World::new(config(mode, 1 << 20), source.events.clone(), 3);
        world.run(&steps);
        prop_assert_eq!(rows(&world), source.replica());
        prop_assert_eq!(world.ledger.counters.unresolved, 0);
        // Once all rows are deleted and the heirs' time is over, no record is left.
        let live: Vec<i64> = source.rows.keys().copied().collect();
        for id in live {
            source.act(id, Act::Delete);
        }
        if !source.events.iter().any(|e| e.op == Op::Truncate || e.old_key.is_some()) {
            world.stream = source.events;
            world.run(&[]);
            prop_assert_eq!(world.memory.count(Space::Values), 0);
        }
    }
}

fn long(tag: &str) -> String {
    tag.repeat(LONG)
}

/// k1 → k2 → k3, all forwards delivered last to first: the value arrives, once.
#[test]
fn a_chain_of_key_changes_resolves() {
    let mut source = Source::new();
    source.act(0, Act::Insert);
    source.rows.get_mut(&0).unwrap().texts = [Some(long("a")), Some("short".to_owned())];
    source.events.clear();
    source.push(Op::Create, 0, None);
    source.act(0, Act::Rename);
    source.act(10, Act::Rename);
    source.act(11, Act::Touch);
    source.events.reverse();
    let mut world = World::new(config(Mode::Exact, 1 << 20), source.events.clone(), 4);
    let steps: Vec<_> = (0..40).flat_map(|i| [Step::Deliver(1), Step::Forward(40 - i)]).collect();
    world.run(&steps);
    assert_eq!(rows(&world), source.replica());
}

/// Rows that cannot have out-of-line values leave no record.
#[test]
fn small_rows_cost_no_values() {
    let schema = articles();
    let small =
        |lsn| row(&[Value::Int(1), Value::Int(lsn as i64), Value::Text("a few words of text"), Value::Null]);
    let stream =
        (1..50u64).map(|lsn| event(&schema, Op::Update, Some(key(1)), lsn, lsn, small(lsn))).collect();
    let mut world = World::new(config(Mode::Exact, 1 << 20), stream, 1);
    world.run(&[Step::Deliver(10), Step::Barrier, Step::Commit]);
    assert_eq!(world.memory.count(Space::Values), 0);
}

/// A value that was never seen stays unchanged in the filled row, and is counted.
#[test]
fn what_was_never_seen_is_unresolved() {
    let schema = articles();
    let text = long("x");
    let first = row(&[Value::Int(1), Value::Int(1), Value::Unchanged, Value::Text(&text)]);
    let second = row(&[Value::Int(1), Value::Int(2), Value::Unchanged, Value::Unchanged]);
    let stream = vec![
        event(&schema, Op::Update, Some(key(1)), 5, 10, first),
        event(&schema, Op::Update, Some(key(1)), 15, 20, second.clone()),
    ];
    let mut world = World::new(config(Mode::Exact, 1 << 20), stream, 1);
    world.run(&[]);
    assert_eq!(world.ledger.counters.unresolved, 2);
    let (_, cells) = &world.ledger.replica[&key(1)];
    assert_eq!((&cells[2][..], cells[3].len()), ("Unchanged", format!("{:?}", Value::Text(&text)).len()));

    let mut full = config(Mode::Exact, 1 << 20);
    full.full_identity.insert("public.orders".to_owned());
    let stream = vec![event(&schema, Op::Update, Some(key(1)), 5, 10, second)];
    let mut world = World::new(full, stream, 1);
    world.run(&[]);
    assert_eq!(world.memory.count(Space::Values), 0);
}

proptest! {
    #[test]
    fn forwards_refuse_garbage(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Forward::decode(&bytes);
        if bytes.len() > 1 {
            (bytes[0], bytes[1]) = (1, bytes[1] & 1);
        }
        let _ = Forward::decode(&bytes);
    }
}
