//! Ack ids: which message of which subscription, and which of its deliveries. Limits: 22 characters; opaque to clients.

use std::fmt;

/// Its text's length: six bits a character.
pub(crate) const LENGTH: usize = 22;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// One delivery of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AckId {
    /// The subscription, as a number of its own that also serves as a check.
    pub(crate) tag: u32,
    /// Which delivery of the message.
    pub(crate) generation: u32,
    /// The message's place in the subscription.
    pub(crate) place: u64,
}

impl AckId {
    /// Its text.
    pub(crate) fn text(self) -> [u8; LENGTH] {
        let mut rest =
            u128::from(self.tag) << 96 | u128::from(self.generation) << 64 | u128::from(self.place);
        let mut text = [0; LENGTH];
        for digit in text.iter_mut().rev() {
            *digit = DIGITS[(rest & 63) as usize];
            rest >>= 6;
        }
        text
    }

    /// Reads a text; nothing if it is no ack id at all.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != LENGTH {
            return None;
        }
        let mut number: u128 = 0;
        for (at, &digit) in text.iter().enumerate() {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            // 22 digits hold four bits more than there are.
            if at == 0 && value >= 4 {
                return None;
            }
            number = number << 6 | u128::from(value);
        }
        Some(Self { tag: (number >> 96) as u32, generation: (number >> 64) as u32, place: number as u64 })
    }
}

impl fmt::Display for AckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_others_are_refused() {
        for id in [
            AckId { tag: 0, generation: 0, place: 0 },
            AckId { tag: u32::MAX, generation: u32::MAX, place: u64::MAX },
            AckId { tag: 7, generation: 1 << 20, place: 123_456_789 },
        ] {
            assert_eq!(AckId::parse(&id.text()), Some(id));
            assert_eq!(AckId::parse(id.to_string().as_bytes()), Some(id));
        }
        for text in ["", "x", "!!!!!!!!!!!!!!!!!!!!!!", "zzzzzzzzzzzzzzzzzzzzzz", "AAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(AckId::parse(text.as_bytes()), None, "{text}");
        }
    }
}
