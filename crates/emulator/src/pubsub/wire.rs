//! The requests and responses that move messages, and their codec. They keep a message's bytes as they came, and ack ids
//! as numbers: decoding every message into maps and strings would cost more than everything else here.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::Message as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::ack_id::{self, AckId};
use super::api::{self, streaming_pull_response as confirmations};
use super::fields::{Fields, Malformed, Scratch, varint_len};

/// What can be written to a response.
pub(crate) trait Encode: Send + 'static {
    fn encode(self, buffer: &mut EncodeBuf<'_>);
}

/// What can be read from a request.
pub(crate) trait Decode: Sized + Send + 'static {
    fn decode(bytes: Bytes) -> Result<Self, Malformed>;
}

/// The codec of these types.
#[derive(Debug)]
pub(crate) struct WireCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for WireCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Encode, D: Decode> Codec for WireCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = WireEncoder<E>;
    type Decoder = WireDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        WireEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        WireDecoder(PhantomData)
    }
}

#[derive(Debug)]
pub(crate) struct WireEncoder<E>(PhantomData<E>);

impl<E: Encode> Encoder for WireEncoder<E> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer);
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct WireDecoder<D>(PhantomData<D>);

impl<D: Decode> Decoder for WireDecoder<D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let length = buffer.remaining();
        let item = D::decode(buffer.copy_to_bytes(length));
        item.map(Some).map_err(|Malformed| Status::internal("The request is no valid protobuf message."))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(256 * 1024, 256 * 1024)
    }
}

/// `google.protobuf.Empty`.
pub(crate) type Empty = ();

impl Encode for () {
    fn encode(self, _buffer: &mut EncodeBuf<'_>) {}
}

impl Decode for api::PullRequest {
    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        <Self as prost::Message>::decode(bytes).map_err(|_| Malformed)
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed)
}

/// `PublishRequest`: the messages are slices of the request.
#[derive(Debug)]
pub(crate) struct PublishRequest {
    pub(crate) topic: String,
    pub(crate) messages: Vec<Bytes>,
    /// The request's size.
    pub(crate) bytes: usize,
}

impl Decode for PublishRequest {
    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let (mut topic, mut messages) = (String::new(), Vec::new());
        for field in Fields::new(&bytes) {
            let field = field?;
            match field.number {
                1 if field.delimited => topic = text(&bytes[field.content])?,
                2 if field.delimited => messages.push(bytes.slice(field.content)),
                _ => {}
            }
        }
        Ok(Self { topic, messages, bytes: bytes.len() })
    }
}

/// `PublishResponse`: the ids of a batch follow each other.
#[derive(Debug)]
pub(crate) struct PublishResponse {
    pub(crate) first: u64,
    pub(crate) count: usize,
}

impl Encode for PublishResponse {
    fn encode(self, buffer: &mut EncodeBuf<'_>) {
        buffer.reserve(self.count * 22);
        let mut digits = [0; 20];
        for id in self.first..self.first + self.count as u64 {
            let digits = decimal(id, &mut digits);
            buffer.put_slice(&[0x0a, digits.len() as u8]);
            buffer.put_slice(digits);
        }
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// An ack id of a request: one of ours, or a text that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    Id(AckId),
    Malformed(String),
}

impl Given {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        match AckId::parse(bytes) {
            Some(id) => Ok(Given::Id(id)),
            None => Ok(Given::Malformed(text(bytes)?)),
        }
    }
}

/// `AcknowledgeRequest`.
#[derive(Debug)]
pub(crate) struct AckRequest {
    pub(crate) subscription: String,
    pub(crate) ids: Vec<Given>,
    pub(crate) bytes: usize,
}

impl Decode for AckRequest {
    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let (mut subscription, mut ids) =
            (String::new(), Vec::with_capacity(bytes.len() / (ack_id::LENGTH + 2)));
        for field in Fields::new(&bytes) {
            let field = field?;
            match field.number {
                1 if field.delimited => subscription = text(&bytes[field.content])?,
                2 if field.delimited => ids.push(Given::read(&bytes[field.content])?),
                _ => {}
            }
        }
        Ok(Self { subscription, ids, bytes: bytes.len() })
    }
}

/// `ModifyAckDeadlineRequest`.
#[derive(Debug)]
pub(crate) struct ModifyRequest {
    pub(crate) subscription: String,
    pub(crate) ids: Vec<Given>,
    pub(crate) seconds: i32,
    pub(crate) bytes: usize,
}

impl Decode for ModifyRequest {
    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let (mut subscription, mut ids, mut seconds) = (String::new(), Vec::new(), 0);
        for field in Fields::new(&bytes) {
            let field = field?;
            match field.number {
                1 if field.delimited => subscription = text(&bytes[field.content])?,
                3 => seconds = field.value as i32,
                4 if field.delimited => ids.push(Given::read(&bytes[field.content])?),
                _ => {}
            }
        }
        Ok(Self { subscription, ids, seconds, bytes: bytes.len() })
    }
}

/// `StreamingPullRequest`.
#[derive(Debug, Default)]
pub(crate) struct StreamRequest {
    pub(crate) subscription: String,
    pub(crate) acks: Vec<Given>,
    pub(crate) modify_seconds: Vec<i32>,
    pub(crate) modify_ids: Vec<Given>,
    pub(crate) deadline_seconds: i32,
    pub(crate) client: String,
    pub(crate) outstanding_messages: i64,
    pub(crate) outstanding_bytes: i64,
    pub(crate) protocol: i64,
}

impl Decode for StreamRequest {
    fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut request = Self::default();
        for field in Fields::new(&bytes) {
            let field = field?;
            match (field.number, field.delimited) {
                (1, true) => request.subscription = text(&bytes[field.content])?,
                (2, true) => request.acks.push(Given::read(&bytes[field.content])?),
                // Packed or one by one: a reader has to take both.
                (3, true) => packed(&bytes[field.content], &mut request.modify_seconds)?,
                (3, false) => request.modify_seconds.push(field.value as i32),
                (4, true) => request.modify_ids.push(Given::read(&bytes[field.content])?),
                (5, false) => request.deadline_seconds = field.value as i32,
                (6, true) => request.client = text(&bytes[field.content])?,
                (7, false) => request.outstanding_messages = field.value as i64,
                (8, false) => request.outstanding_bytes = field.value as i64,
                (10, false) => request.protocol = field.value as i64,
                _ => {}
            }
        }
        Ok(request)
    }
}

fn packed(mut bytes: &[u8], numbers: &mut Vec<i32>) -> Result<(), Malformed> {
    while bytes.has_remaining() {
        numbers.push(prost::encoding::decode_varint(&mut bytes).map_err(|_| Malformed)? as i32);
    }
    Ok(())
}

/// A message on its way to a subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) ack: AckId,
    pub(crate) id: u64,
    /// Nanoseconds since 1970.
    pub(crate) published: i64,
    pub(crate) attempt: u32,
    pub(crate) wire: Bytes,
}

/// `StreamingPullResponse`, and `PullResponse`, which has the same first field and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) acks: Option<confirmations::AcknowledgeConfirmation>,
    pub(crate) modifications: Option<confirmations::ModifyAckDeadlineConfirmation>,
    pub(crate) properties: Option<confirmations::SubscriptionProperties>,
}

impl Delivery {
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.acks.is_none()
            && self.modifications.is_none()
            && self.properties.is_none()
    }
}

impl Encode for Delivery {
    fn encode(self, buffer: &mut EncodeBuf<'_>) {
        // 128 bytes are more than what is written around a message.
        buffer.reserve(self.messages.iter().map(|message| message.wire.len() + 128).sum());
        for message in &self.messages {
            message.encode(buffer);
        }
        // The rest is rare and small.
        let rest = api::StreamingPullResponse {
            received_messages: Vec::new(),
            acknowledge_confirmation: self.acks,
            modify_ack_deadline_confirmation: self.modifications,
            subscription_properties: self.properties,
        };
        let length = rest.encoded_len();
        if length > 0 {
            buffer.reserve(length);
            buffer.put_slice(&rest.encode_to_vec());
        }
    }
}

impl Outgoing {
    fn encode(&self, buffer: &mut EncodeBuf<'_>) {
        let mut tail = Scratch::new();
        let mut digits = [0; 20];
        let digits = decimal(self.id, &mut digits);
        tail.byte(3 << 3 | 2);
        tail.varint(digits.len() as u64);
        tail.slice(digits);
        let seconds = self.published.div_euclid(1_000_000_000) as u64;
        let nanos = self.published.rem_euclid(1_000_000_000) as u64;
        tail.byte(4 << 3 | 2);
        tail.varint((2 + varint_len(seconds) + varint_len(nanos)) as u64);
        tail.byte(1 << 3);
        tail.varint(seconds);
        tail.byte(2 << 3);
        tail.varint(nanos);

        let inner = self.wire.len() + tail.as_slice().len();
        let attempt = if self.attempt == 0 { 0 } else { 1 + varint_len(u64::from(self.attempt)) };
        let outer = 2 + ack_id::LENGTH + 1 + varint_len(inner as u64) + inner + attempt;
        let mut head = Scratch::new();
        head.byte(1 << 3 | 2);
        head.varint(outer as u64);
        head.byte(1 << 3 | 2);
        head.byte(ack_id::LENGTH as u8);
        head.slice(&self.ack.text());
        head.byte(2 << 3 | 2);
        head.varint(inner as u64);

        if self.attempt > 0 {
            tail.byte(3 << 3);
            tail.varint(u64::from(self.attempt));
        }
        buffer.put_slice(head.as_slice());
        buffer.put_slice(&self.wire);
        buffer.put_slice(tail.as_slice());
    }
}
