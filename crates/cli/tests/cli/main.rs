//! The command from outside: what it prints, how it ends, and what it leaves behind.

mod dead_letters;
mod messages;
mod operation;
mod workplace;
