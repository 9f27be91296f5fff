//! Ordering keys: the messages of a key go out in their order, to one client at a time. A key is a list through the
//! backlog's entries, with a cursor at what is to be delivered next.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashMap;

/// No entry: the end of a list.
pub(crate) const END: u64 = u64::MAX;

/// The queue of keys that nobody owns; clients have the numbers above it.
const COMMON: u32 = 1;

/// No queue, no owner.
pub(crate) const NOBODY: u32 = 0;

/// A key with messages that are not finished.
#[derive(Debug)]
pub(crate) struct Key {
    name: Bytes,
    /// The oldest entry that is not finished.
    pub(crate) head: u64,
    /// The newest entry.
    pub(crate) tail: u64,
    /// The next entry to deliver, or `END`.
    pub(crate) cursor: u64,
    /// How many of its messages are leased.
    pub(crate) outstanding: u32,
    /// The client that holds them: while it does, nobody else gets messages of the key.
    owner: u32,
    /// The queue the key waits in. Queues may hold it elsewhere too; those turns are skipped.
    queue: u32,
    /// Whether its next message waits for its backoff to end.
    pub(crate) blocked: bool,
}

/// Who receives: the streams of one client id, or a stream without, or one Pull.
#[derive(Debug, Default)]
struct Client {
    queue: VecDeque<u32>,
    owned: u32,
    streams: u32,
}

/// A subscription's keys and the clients that own them.
#[derive(Debug)]
pub(crate) struct Keys {
    by_name: HashMap<Bytes, u32>,
    keys: Vec<Key>,
    free: Vec<u32>,
    common: VecDeque<u32>,
    clients: HashMap<u32, Client>,
    names: HashMap<String, u32>,
    next_client: u32,
}

impl Key {
    /// A key without messages, which nobody owns.
    fn new(name: Bytes) -> Self {
        Self {
            name,
            head: END,
            tail: END,
            cursor: END,
            outstanding: 0,
            owner: NOBODY,
            queue: NOBODY,
            blocked: false,
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        // Number 0 stands for "no key".
        let none = Key::new(Bytes::new());
        Self {
            by_name: HashMap::new(),
            keys: vec![none],
            free: Vec::new(),
            common: VecDeque::new(),
            clients: HashMap::new(),
            names: HashMap::new(),
            next_client: COMMON + 1,
        }
    }
}

impl Keys {
    /// The key of this name.
    pub(crate) fn number(&mut self, name: &Bytes) -> u32 {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        // A copy, since the slice would keep its whole request alive.
        let name = Bytes::copy_from_slice(name);
        let key = Key::new(name.clone());
        let number = if let Some(number) = self.free.pop() {
            self.keys[number as usize] = key;
            number
        } else {
            self.keys.push(key);
            (self.keys.len() - 1) as u32
        };
        self.by_name.insert(name, number);
        number
    }

    /// A key's state.
    pub(crate) fn key(&mut self, number: u32) -> &mut Key {
        &mut self.keys[number as usize]
    }

    /// Gives the key its turn, if it has something to deliver and may.
    pub(crate) fn enqueue(&mut self, number: u32) {
        let key = &mut self.keys[number as usize];
        if key.cursor == END || key.blocked {
            return;
        }
        let queue = if key.owner == NOBODY { COMMON } else { key.owner };
        if key.queue == queue {
            return;
        }
        key.queue = queue;
        match self.clients.get_mut(&queue) {
            Some(client) => client.queue.push_back(number),
            None => self.common.push_back(number),
        }
    }

    /// The next key that this client may have messages of: its own come first.
    pub(crate) fn turn(&mut self, client: u32) -> Option<u32> {
        if let Some(own) = self.clients.get_mut(&client) {
            while let Some(number) = own.queue.pop_front() {
                if take_turn(&mut self.keys[number as usize], client) {
                    return Some(number);
                }
            }
        }
        while let Some(number) = self.common.pop_front() {
            if take_turn(&mut self.keys[number as usize], COMMON) {
                return Some(number);
            }
        }
        None
    }

    /// Notes that messages of the key are with this client now.
    pub(crate) fn hold(&mut self, number: u32, client: u32, messages: u32) {
        let key = &mut self.keys[number as usize];
        key.outstanding += messages;
        if key.owner == NOBODY && key.outstanding > 0 {
            key.owner = client;
            self.clients.entry(client).or_default().owned += 1;
        }
    }

    /// Notes that a message of the key is with its client no more; the last one frees the key.
    pub(crate) fn let_go(&mut self, number: u32) {
        let key = &mut self.keys[number as usize];
        key.outstanding = key.outstanding.saturating_sub(1);
        if key.outstanding == 0 && key.owner != NOBODY {
            let owner = std::mem::replace(&mut key.owner, NOBODY);
            if let Some(client) = self.clients.get_mut(&owner) {
                client.owned = client.owned.saturating_sub(1);
            }
            self.forget_client(owner);
            self.enqueue(number);
        }
    }

    /// Forgets a key without messages.
    pub(crate) fn remove(&mut self, number: u32) {
        let key = &mut self.keys[number as usize];
        key.queue = NOBODY;
        let name = std::mem::take(&mut key.name);
        self.by_name.remove(&name);
        self.free.push(number);
    }

    /// A client: the one of this id, or a new one if the id is empty.
    pub(crate) fn client(&mut self, id: &str) -> u32 {
        let number = match self.names.get(id) {
            Some(number) if !id.is_empty() => *number,
            _ => {
                let number = self.next_client;
                self.next_client = self.next_client.wrapping_add(1).max(COMMON + 1);
                if !id.is_empty() {
                    self.names.insert(id.to_owned(), number);
                }
                number
            }
        };
        self.clients.entry(number).or_default().streams += 1;
        number
    }

    /// A stream of the client ended.
    pub(crate) fn leave(&mut self, client: u32) {
        if let Some(state) = self.clients.get_mut(&client) {
            state.streams = state.streams.saturating_sub(1);
        }
        self.forget_client(client);
    }

    fn forget_client(&mut self, number: u32) {
        let idle = self.clients.get(&number).is_some_and(|client| client.streams == 0 && client.owned == 0);
        if idle {
            // What still waits in its queue are stale turns: an owned key would keep the client.
            self.clients.remove(&number);
            self.names.retain(|_, named| *named != number);
        }
    }

    /// Whether there are no keys, and nobody owns any.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.clients.values().all(|client| client.owned == 0 && client.streams > 0)
    }

    /// Forgets keys but not clients.
    pub(crate) fn clear(&mut self) {
        self.by_name.clear();
        self.keys.truncate(1);
        self.free.clear();
        self.common.clear();
        for client in self.clients.values_mut() {
            client.queue.clear();
            client.owned = 0;
        }
        let numbers: Vec<u32> = self.clients.keys().copied().collect();
        for number in numbers {
            self.forget_client(number);
        }
    }
}

fn take_turn(key: &mut Key, queue: u32) -> bool {
    let valid = key.queue == queue;
    if valid {
        key.queue = NOBODY;
    }
    valid && key.cursor != END && !key.blocked
}
