//! The simulated world: crashes, redelivery, reordering, checkers and mutants.
