//! What `demo` plays: a database at work, whose changes come over an emulated Pub/Sub that is not always kind.

mod pace;
mod shop;

pub(crate) use pace::{PROJECT, Stage};
pub(crate) use shop::Shop;
