//! Keyed state under the gate: the store answers every read with arbitrary bytes (a damaged disk). The gate may refuse
//! them with an error; it must not panic, and what it hands out at a barrier must be readable by the next gate.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use millstream_core::dedupe::{Gate, GateConfig};
use millstream_core::event::Origin;
use millstream_core::order::Incarnation;
use millstream_core::{
    Column, Event, EventId, Facts, Key, Op, Order, Result, RowBuilder, RowSchema, Space, StateView,
    TableName, Type, Value,
};

/// Answers from the input: its first byte says which spaces hold anything, and each space has its part of the rest.
struct Damaged(Vec<u8>);

impl Damaged {
    fn part(&self, space: Space) -> Option<&[u8]> {
        let (mask, rest) = self.0.split_first()?;
        let quarter = rest.len() / 4;
        let at = quarter * space as usize;
        (mask >> space as u8 & 1 == 1).then_some(&rest[at..at + quarter])
    }
}

impl StateView for Damaged {
    fn get(&self, space: Space, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.part(space).map(<[u8]>::to_vec))
    }

    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        // One entry with the asked prefix, as a store would answer.
        if let Some(part) = self.part(space) {
            let key = [prefix, &part[..part.len().min(8)]].concat();
            visit(&key, part);
        }
        Ok(())
    }
}

/// What a gate left behind, by space and key.
struct Written(Vec<(Space, Vec<u8>, Option<Vec<u8>>)>);

impl StateView for Written {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.0.iter().rev().find(|(s, k, _)| *s == space && k == key);
        Ok(found.and_then(|(_, _, value)| value.clone()))
    }

    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for (s, key, value) in &self.0 {
            if let Some(value) = value
                && *s == space
                && key.starts_with(prefix)
                && !visit(key, value)
            {
                break;
            }
        }
        Ok(())
    }
}

fn schema() -> Arc<RowSchema> {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, guessed: false };
    Arc::new(RowSchema {
        table: Arc::new(TableName::new("db", "public", "t")),
        columns: vec![column("id", Type::Int64), column("text", Type::Text)],
        key: vec![0],
    })
}

fn event(schema: &Arc<RowSchema>, op: Op, lsn: u64, text: Value<'_>, keyed: bool) -> Event {
    let mut row = RowBuilder::new();
    row.push(Value::Int(7));
    row.push(text);
    Event {
        schema: Arc::clone(schema),
        op,
        key: keyed.then(|| Key::from_values([Value::Int(7)])),
        old_key: None,
        new_key: None,
        order: Order::postgres(Incarnation(0), lsn.saturating_sub(40), lsn),
        p_known: true,
        id: EventId::postgres(Incarnation(0), lsn, op == Op::Read),
        row: row.finish(),
        before: None,
        full_before: false,
        facts: Facts { ts_us: Some(1_717_200_000_000_000), ..Facts::default() },
        origin: Origin { partition: 1, offset: lsn, index: 0 },
        record: 0,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let config = Arc::new(GateConfig { ids_kept_min: 4, ids_kept_ms: 1, ..GateConfig::default() });
    let Ok(mut gate) = Gate::new(Arc::clone(&config), 0, 1, Arc::new(Damaged(bytes.to_vec()))) else {
        return;
    };
    let schema = schema();
    let (mut out, mut sends) = (Vec::new(), Vec::new());
    let lsn = bytes.last().map_or(100, |&b| u64::from(b) << 8);
    let events = [
        event(&schema, Op::Read, lsn, Value::Text("seen"), true),
        event(&schema, Op::Update, lsn + 50, Value::Unchanged, true),
        event(&schema, Op::Create, lsn + 60, Value::Null, false),
        event(&schema, Op::Delete, lsn + 70, Value::Null, true),
    ];
    for event in events {
        if gate.judge(Box::new(event), false, &mut out, &mut sends).is_err() {
            return;
        }
    }
    let barrier = gate.barrier(1_717_200_001_000);
    let written = Arc::new(Written(barrier.state.writes));
    let mut next = Gate::new(config, 0, 1, written).expect("what a gate wrote can be read");
    let again = event(&schema, Op::Update, lsn + 90, Value::Unchanged, true);
    next.judge(Box::new(again), false, &mut out, &mut sends).expect("what a gate wrote can be read");
});
