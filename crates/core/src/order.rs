//! The total order of one key's events, and the identity by which duplicates are found.

use std::fmt;

/// Raised by config or command when positions of a source start anew (data loss, failover); sorts before all positions.
/// At most 32 767.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u16);

/// The order of an event among the events of its key: up to four unsigned numbers compared left to right.
///
/// As text: four or fewer 16-digit upper-case hex sections joined by `/`, so that texts of one table sort like the
/// numbers do; the same text is BigQuery's `_CHANGE_SEQUENCE_NUMBER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    sections: [u64; 4],
    len: u8,
}

impl Order {
    /// The order below all orders; no event has it.
    pub const MIN: Order = Order { sections: [0; 4], len: 1 };

    /// The start of an incarnation: above all orders of the incarnations before it, and below all of its own.
    pub fn start(incarnation: Incarnation) -> Self {
        Self { sections: [incarnation.0.into(), 0, 0, 0], len: 1 }
    }

    /// PostgreSQL: (incarnation, position of the last commit before the transaction, LSN).
    pub fn postgres(incarnation: Incarnation, p: u64, lsn: u64) -> Self {
        Self { sections: [incarnation.0.into(), p, lsn, 0], len: 3 }
    }

    /// A PostgreSQL snapshot read at `lsn`: just below a change at the same position.
    ///
    /// A read can carry the very position of the row's next change (the LSN of the log's end is that of the next record);
    /// the change is newer. WAL records start at multiples of 8, so `lsn - 1` is no change's.
    pub fn postgres_read(incarnation: Incarnation, p: u64, lsn: u64) -> Self {
        Self::postgres(incarnation, p, lsn.saturating_sub(1))
    }

    /// MySQL and MariaDB: (incarnation, binlog file number, position, row).
    pub fn mysql(incarnation: Incarnation, file: u64, position: u64, row: u64) -> Self {
        Self { sections: [incarnation.0.into(), file, position, row], len: 4 }
    }

    /// From sections, most significant first. Between one and four; more are a caller's bug.
    pub fn from_sections(sections: &[u64]) -> Self {
        assert!((1..=4).contains(&sections.len()), "invariant: an order has one to four sections");
        let mut all = [0; 4];
        all[..sections.len()].copy_from_slice(sections);
        Self { sections: all, len: sections.len() as u8 }
    }

    /// Its sections, most significant first.
    pub fn sections(&self) -> &[u64] {
        &self.sections[..self.len as usize]
    }

    /// The same order with section `index` replaced.
    #[must_use]
    pub fn with_section(mut self, index: usize, value: u64) -> Self {
        assert!(index < self.len as usize, "invariant: the section exists");
        self.sections[index] = value;
        self
    }

    /// Appends the text form to `out`.
    pub fn write_hex(&self, out: &mut String) {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        let mut buffer = [b'/'; 67];
        for (i, section) in self.sections().iter().enumerate() {
            for digit in 0..16 {
                buffer[i * 17 + digit] = HEX[(section >> (60 - 4 * digit)) as usize & 15];
            }
        }
        let text = &buffer[..self.len as usize * 17 - 1];
        out.push_str(std::str::from_utf8(text).expect("invariant: hex digits are ASCII"));
    }

    /// Parses the text form.
    pub fn parse_hex(text: &str) -> Option<Self> {
        let mut sections = [0; 4];
        let mut len = 0;
        for section in text.split('/') {
            if len == 4 || section.len() != 16 {
                return None;
            }
            sections[len] = u64::from_str_radix(section, 16).ok()?;
            len += 1;
        }
        (len > 0).then_some(Self { sections, len: len as u8 })
    }
}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.sections.cmp(&other.sections).then(self.len.cmp(&other.len))
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(67);
        self.write_hex(&mut text);
        f.write_str(&text)
    }
}

/// The identity of an event within its table and key: incarnation, source position, read or change.
///
/// Bits, most significant first: incarnation 15, position 112, read 1 (a snapshot read is 1, a change 0). PostgreSQL's
/// position is the LSN (without `p`, which differs between a change and its replay); MySQL's is file 32, position 48, row 32.
///
/// Packed to the alignment of its halves: a 16-byte alignment would spread to events, and allocators serve vectors of those
/// on a slower path.
#[repr(C, packed(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u128);

impl EventId {
    /// The identity at `position` (below 2^112).
    pub fn new(incarnation: Incarnation, position: u128, read: bool) -> Self {
        assert!(
            incarnation.0 < 1 << 15,
            "invariant: incarnations are checked to be below 32768 by the config"
        );
        assert!(position < 1 << 112, "invariant: positions are below 2^112");
        Self(u128::from(incarnation.0) << 113 | position << 1 | u128::from(read))
    }

    /// The identity at the start of an incarnation, where no log has a change.
    pub fn start(incarnation: Incarnation) -> Self {
        Self::new(incarnation, 0, false)
    }

    /// PostgreSQL.
    pub fn postgres(incarnation: Incarnation, lsn: u64, read: bool) -> Self {
        Self::new(incarnation, lsn.into(), read)
    }

    /// MySQL. `position` is cut to 48 bits, which no binlog reaches.
    pub fn mysql(incarnation: Incarnation, file: u32, position: u64, row: u32, read: bool) -> Self {
        let position = u128::from(position & ((1 << 48) - 1));
        Self::new(incarnation, u128::from(file) << 80 | position << 32 | u128::from(row), read)
    }

    /// Whether it is a snapshot read.
    pub fn is_read(&self) -> bool {
        self.0 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sorts_like_numbers_and_comes_back() {
        let a = Order::postgres(Incarnation(0), 9, 200);
        let b = Order::postgres(Incarnation(0), 10, 100);
        assert!(a < b && a.to_string() < b.to_string());
        assert_eq!(a.to_string(), "0000000000000000/0000000000000009/00000000000000C8");
        assert_eq!(Order::parse_hex(&a.to_string()), Some(a));
        assert_eq!(Order::parse_hex("00/11"), None);
        assert!(Order::MIN < a);
        assert!(Order::postgres_read(Incarnation(0), 9, 200) < a);
        assert!(Order::postgres_read(Incarnation(0), 9, 200) > Order::postgres(Incarnation(0), 9, 192));
    }

    /// As numbers in the gate and in replicas, and as the texts that SQL compares.
    #[test]
    fn an_incarnation_starts_above_those_before_and_below_all_of_its_own() {
        let (before, now) = (Incarnation(6), Incarnation(7));
        let start = Order::start(now);
        assert_eq!(start.to_string(), "0000000000000007");
        assert_eq!(Order::parse_hex(&start.to_string()), Some(start));
        let highest_before = [
            Order::postgres(before, u64::MAX, u64::MAX),
            Order::mysql(before, u64::MAX, u64::MAX, u64::MAX),
            Order::start(before),
        ];
        for older in highest_before {
            assert!(older < start && older.to_string() < start.to_string(), "{older}");
        }
        let lowest_of_its_own =
            [Order::postgres(now, 0, 0), Order::postgres_read(now, 0, 0), Order::mysql(now, 0, 0, 0)];
        for newer in lowest_of_its_own {
            assert!(start < newer && start.to_string() < newer.to_string(), "{newer}");
        }
        assert_ne!(EventId::start(before), EventId::start(now));
        assert_ne!(EventId::start(now), EventId::postgres(now, 0, true));
    }
}
