//! The process' memory: what the kernel and the allocator are asked for once, at the start.

use std::ffi::{c_int, c_long};

/// Number of mimalloc's option for the milliseconds until freed memory goes back to the kernel (`mimalloc.h`, third version);
/// the crate has no name for it.
const PURGE_DELAY: c_int = 15;
/// Milliseconds.
const PURGE_DELAY_MS: c_long = 100;

/// Asks the kernel for small pages and the allocator to give back early what is free.
pub(crate) fn economize() {
    decline_huge_pages();
    purge_early();
}

/// Asks the kernel for small pages only.
///
/// Messages and rows are allocated by one thread and freed by another, in any order, so that heap pages are sparsely filled
/// much of the time; a huge page stays whole for one block on it. The live demo took 1.1 GB with huge pages and 0.3 GB without.
/// The same binary with and without them by turns, medians of three: 0.95 of the CPU to the discard sink, 0.94 to DuckDB.
fn decline_huge_pages() {
    // A kernel that knows no huge pages has declined them itself.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Has freed pages given back after a tenth of a second instead of a whole one.
///
/// An epoch's rows are freed at its end, while the next one's come in: within a second most of both is resident. A backlog of
/// 4 M messages from Pub/Sub into DuckDB took 516 to 562 MB with a second and 468 to 481 MB with a tenth, runs by turns, at the
/// same CPU (8.1–9.4 and 8.3–9.3 CPU seconds per million).
#[expect(unsafe_code, reason = "an option of the C allocator, which its crate does not wrap")]
fn purge_early() {
    // SAFETY: the call stores a number in the allocator's table of options, unless the environment (`MIMALLOC_PURGE_DELAY`) did,
    // and ignores numbers of options that it does not have.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The option goes by its number, which another version of the allocator may give to something else.
    #[test]
    #[expect(unsafe_code, reason = "reads the option back")]
    fn the_number_is_that_of_the_purge_delay() {
        // SAFETY: the call reads a number from the allocator's table of options.
        let get = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(get(), 1000, "the allocator's default");
        economize();
        assert_eq!(get(), PURGE_DELAY_MS);
    }
}
