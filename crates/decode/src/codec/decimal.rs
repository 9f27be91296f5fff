//! Exact decimals: base64 of the unscaled integer, structs of scale and value, text and JSON numbers.
//!
//! No digit is ever rounded. A number that does not fit the column's declared precision or scale widens the column.

use millstream_core::{RowBuilder, Type, Value};

use super::{
    Ctx, Fail, INVALID_VALUE, Learned, NOT_FINITE, TOO_LARGE, WRONG_TYPE, bigint, binary::BinaryForm,
};
use crate::options::NotFinitePolicy;
use crate::scan::{Cursor, Number, Str};

/// Zeros that an exponent or scale may add to one number.
const ZEROS_MAX: i64 = 20_000;

/// How a decimal column is read and what it becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DecimalCodec {
    /// How to take a JSON string.
    pub(crate) form: DecimalForm,
    /// What to push.
    pub(crate) target: Target,
}

/// What a JSON string of a decimal column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecimalForm {
    /// Base64 of the unscaled integer at this scale.
    Unscaled(i32),
    /// Base64 of an unscaled integer of which nobody told the scale; kept as text.
    UnknownScale,
    /// Plain text.
    Text,
}

/// What a decimal column's cells are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Of that precision and scale.
    Decimal { precision: u16, scale: u16 },
    /// Unbounded.
    Numeric,
    /// Text, for NaN and infinities.
    Text,
}

impl Target {
    pub(crate) fn ty(self) -> Type {
        match self {
            Target::Decimal { precision, scale } => Type::Decimal { precision, scale },
            Target::Numeric => Type::Numeric,
            Target::Text => Type::Text,
        }
    }
}

impl DecimalCodec {
    pub(crate) fn guessed(self) -> bool {
        self.form == DecimalForm::UnknownScale
    }

    pub(crate) fn unbounded(self) -> Self {
        let target = if self.target == Target::Text { Target::Text } else { Target::Numeric };
        Self { target, ..self }
    }

    pub(crate) fn as_text(self) -> Self {
        Self { target: Target::Text, ..self }
    }

    #[inline]
    pub(crate) fn decode(
        self,
        cur: &mut Cursor<'_>,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        match cur.byte() {
            b'"' => {
                let string = cur.string()?;
                match self.form {
                    DecimalForm::Unscaled(scale) => self.unscaled(string, scale, ctx, out),
                    DecimalForm::Text => self.text(string, ctx, out),
                    DecimalForm::UnknownScale => self.unknown(string, ctx, out),
                }
            }
            b'-' | b'0'..=b'9' => match cur.number()? {
                Number::Int(v) => self.push_small(v, 0, ctx, out),
                Number::Text(text) => self.push_text(text, ctx, out),
            },
            b'{' => {
                let (scale, value) = variable_scale(cur)?;
                self.unscaled(value, scale, ctx, out)
            }
            _ => Err(Fail::Bad(WRONG_TYPE, "a decimal")),
        }
    }

    fn text(self, string: Str<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if ctx.detect && ctx.placeholder.is_text(string) {
            out.push(Value::Unchanged);
            return Ok(());
        }
        match &*string.decode() {
            "NaN" | "NAN" => self.not_finite(None, ctx, out),
            "Infinity" | "POSITIVE_INFINITY" => self.not_finite(Some(false), ctx, out),
            "-Infinity" | "NEGATIVE_INFINITY" => self.not_finite(Some(true), ctx, out),
            text if is_number(text) => self.push_text(text, ctx, out),
            _ => Err(Fail::Bad(INVALID_VALUE, "a decimal's digits")),
        }
    }

    fn unknown(self, string: Str<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if self.target != Target::Text {
            return Err(Fail::Widen(Learned::DecimalText));
        }
        ctx.note("decimal_scale_unknown");
        out.push_text_with(|heap| string.append_to(heap));
        Ok(())
    }

    #[inline]
    fn unscaled(self, string: Str<'_>, scale: i32, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        let mut bytes = std::mem::take(&mut ctx.bytes);
        bytes.clear();
        let decoded = BinaryForm::Base64.decode(&string.decode(), &mut bytes);
        let result = if decoded { self.push_unscaled(&bytes, scale, ctx, out) } else { Err(BASE64) };
        ctx.bytes = bytes;
        result
    }

    #[inline]
    fn push_unscaled(
        self,
        bytes: &[u8],
        scale: i32,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        if bytes.is_empty() {
            return Err(BASE64);
        }
        if let (true, Ok(scale)) = (bytes.len() <= 8, u8::try_from(scale)) {
            let head = if bytes[0] & 0x80 != 0 { -1i64 } else { 0 };
            let value = bytes.iter().fold(head, |n, &b| n << 8 | i64::from(b));
            return self.push_small(value, scale, ctx, out);
        }
        if bytes.len() > bigint::BYTES_MAX {
            return Err(Fail::Bad(TOO_LARGE, "a decimal of at most 149 000 digits"));
        }
        // The conversion is quadratic, so long integers draw on the record's budget accordingly.
        ctx.expand(bytes.len() * bytes.len() / 256)?;
        let mut digits = std::mem::take(&mut ctx.text);
        digits.clear();
        let negative = bigint::magnitude(bytes, &mut digits);
        let result = self.push_digits(negative, &mut digits, scale.into(), ctx, out);
        ctx.text = digits;
        result
    }

    /// `unscaled × 10^-scale`.
    #[inline]
    fn push_small(self, unscaled: i64, scale: u8, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        match self.target {
            Target::Decimal { precision, scale: wanted }
                if wanted == u16::from(scale) && fits(unscaled, precision) =>
            {
                out.push(Value::Decimal { unscaled, scale });
                Ok(())
            }
            Target::Numeric => {
                out.push(Value::Decimal { unscaled, scale });
                Ok(())
            }
            _ => {
                let mut digits = unscaled.unsigned_abs().to_string();
                self.push_digits(unscaled < 0, &mut digits, scale.into(), ctx, out)
            }
        }
    }

    /// A number's JSON text, exponent and all.
    pub(crate) fn push_text(self, text: &str, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        let (mantissa, exponent) = match text.find(['e', 'E']) {
            None => (text, 0),
            Some(at) => (&text[..at], exponent(&text[at + 1..])),
        };
        let (negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |rest| (true, rest));
        let mantissa = mantissa.strip_prefix('+').unwrap_or(mantissa);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = std::mem::take(&mut ctx.text);
        digits.clear();
        digits.push_str(whole);
        digits.push_str(fraction);
        let scale = (fraction.len() as i64).saturating_sub(exponent);
        let result = self.push_digits(negative, &mut digits, scale, ctx, out);
        ctx.text = digits;
        result
    }

    /// `±digits × 10^-scale`; `digits` is scratch.
    fn push_digits(
        self,
        negative: bool,
        digits: &mut String,
        mut scale: i64,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        let zeros = digits.bytes().take_while(|&b| b == b'0').count();
        digits.drain(..zeros.min(digits.len().saturating_sub(1)));
        if digits == "0" {
            scale = scale.clamp(0, 255);
        }
        // Scales beyond any that a database has are artefacts (PostgreSQL's negative scales arrive as 2046).
        let wanted = match self.target {
            Target::Decimal { scale, .. } => i64::from(scale),
            _ if scale > 1_000 => 0,
            _ => scale.max(0),
        };
        let surplus = digits.bytes().rev().take_while(|&b| b == b'0').count() as i64;
        if scale > wanted && digits != "0" {
            let cut = surplus.min(scale - wanted);
            digits.truncate(digits.len() - cut as usize);
            scale -= cut;
        } else if digits == "0" {
            scale = wanted;
        }
        if scale < wanted {
            let zeros = wanted - scale;
            if zeros > ZEROS_MAX {
                return Err(Fail::Bad(TOO_LARGE, "a number of at most 20 000 zeros"));
            }
            ctx.expand(zeros as usize)?;
            digits.extend(std::iter::repeat_n('0', zeros as usize));
            scale = wanted;
        }
        if let Target::Decimal { precision, .. } = self.target
            && (scale > wanted || (digits.len() > usize::from(precision) && digits != "0"))
        {
            return Err(Fail::Widen(Learned::Unbounded));
        }
        self.push_plain(negative, digits, scale, ctx, out)
    }

    fn push_plain(
        self,
        negative: bool,
        digits: &str,
        scale: i64,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        let small = if digits.len() <= 18 { digits.parse::<i64>().ok() } else { None };
        if let (Some(n), Ok(scale), true) = (small, u8::try_from(scale), self.target != Target::Text) {
            out.push(Value::Decimal { unscaled: if negative { -n } else { n }, scale });
            return Ok(());
        }
        if scale > ZEROS_MAX {
            return Err(Fail::Bad(TOO_LARGE, "a number of at most 20 000 decimal places"));
        }
        let scale = scale as usize;
        ctx.expand(scale.saturating_sub(digits.len()))?;
        let mut plain = String::with_capacity(digits.len().max(scale) + 3);
        if negative && digits != "0" {
            plain.push('-');
        }
        if digits.len() <= scale {
            plain.push('0');
        } else {
            plain.push_str(&digits[..digits.len() - scale]);
        }
        if scale > 0 {
            plain.push('.');
            plain.extend(std::iter::repeat_n('0', scale.saturating_sub(digits.len())));
            plain.push_str(&digits[digits.len().saturating_sub(scale)..]);
        }
        out.push(if self.target == Target::Text { Value::Text(&plain) } else { Value::Digits(&plain) });
        Ok(())
    }

    /// NaN (`None`) or an infinity (`Some(negative)`).
    fn not_finite(self, sign: Option<bool>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        match (ctx.options.not_finite, self.target, sign) {
            (NotFinitePolicy::DeadLetter, ..) => return Err(Fail::Bad(NOT_FINITE, "a finite decimal")),
            (NotFinitePolicy::String, Target::Text, _) => {
                out.push(Value::Text(match sign {
                    None => "NaN",
                    Some(false) => "Infinity",
                    Some(true) => "-Infinity",
                }));
                return Ok(());
            }
            (NotFinitePolicy::String, ..) => return Err(Fail::Widen(Learned::DecimalText)),
            (NotFinitePolicy::Clamp, Target::Decimal { precision, scale }, Some(negative)) => {
                ctx.note("decimal_not_finite");
                ctx.expand(precision.into())?;
                let nines = "9".repeat(precision.into());
                return self.push_plain(negative, &nines, scale.into(), ctx, out);
            }
            _ => {}
        }
        ctx.note("decimal_not_finite");
        out.push(Value::Null);
        Ok(())
    }
}

const BASE64: Fail = Fail::Bad(INVALID_VALUE, "base64 of an unscaled integer");

#[inline]
fn fits(unscaled: i64, precision: u16) -> bool {
    match 10u64.checked_pow(precision.into()) {
        Some(limit) => unscaled.unsigned_abs() < limit,
        None => true,
    }
}

/// `{"scale":2,"value":"ew=="}`, in any order.
fn variable_scale<'a>(cur: &mut Cursor<'a>) -> Result<(i32, Str<'a>), Fail> {
    const WHAT: Fail = Fail::Bad(WRONG_TYPE, "a struct of an integer scale and a base64 value");
    let (mut scale, mut value) = (None, None);
    let mut key = cur.first_key()?;
    while let Some(name) = key {
        if name.is("scale") && matches!(cur.byte(), b'-' | b'0'..=b'9') {
            scale = match cur.number()? {
                Number::Int(n) => i32::try_from(n).ok(),
                Number::Text(_) => None,
            };
        } else if name.is("value") && cur.byte() == b'"' {
            value = Some(cur.string()?);
        } else {
            cur.skip()?;
        }
        key = cur.next_key()?;
    }
    scale.zip(value).ok_or(WHAT)
}

fn exponent(text: &str) -> i64 {
    let text = text.strip_prefix('+').unwrap_or(text);
    // Saturates: any exponent of that size is far beyond every limit.
    text.parse().unwrap_or(if text.starts_with('-') { i64::MIN / 4 } else { i64::MAX / 4 })
}

/// Whether `text` is a number by JSON's grammar, but for an optional leading `+`.
pub(crate) fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text);
    let mut cur = Cursor::new(text, 0);
    matches!(cur.byte(), b'-' | b'0'..=b'9') && cur.number().is_ok() && cur.at() == text.len()
}

/// The integer that a number's text denotes (`1.0`, `1E3`), if it is one of 64 bits.
pub(crate) fn integral(text: &str) -> Option<i64> {
    if let Ok(n) = text.parse() {
        return Some(n);
    }
    if !is_number(text) || text.len() > 40 {
        return None;
    }
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        None => (text, 0),
        Some(at) => (&text[..at], exponent(&text[at + 1..])),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let zeros = exponent.checked_sub(fraction.len() as i64)?;
    if !(0..=18).contains(&zeros) {
        return (whole.trim_start_matches('-').bytes().all(|b| b == b'0') && fraction.is_empty())
            .then_some(0);
    }
    format!("{whole}{fraction}{}", "0".repeat(zeros as usize)).parse().ok()
}
