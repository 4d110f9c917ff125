//! @what@: `Networks::take()`, fill the inputs, `run`, read the outputs.
//!
//! Inputs and outputs have places in one static arena of @arena_bytes@ bytes. What borrows it borrows [`Networks`], of
//! which there is one: no two runs can meet, and no output is read while another run writes it.
#![no_std]
#![allow(non_snake_case)]

use ::core::marker::PhantomData;
#[cfg(target_has_atomic = "8")]
use ::core::sync::atomic::{AtomicBool, Ordering};

/// Why a network has not run: what its C function has returned, which is not 0. The C header names the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

/// Access to the arena.
pub struct Networks {
    not_sync: PhantomData<*mut ()>,
}

#[cfg(target_has_atomic = "8")]
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Networks {
    /// The networks, the first time; `None` from then on.
    #[cfg(target_has_atomic = "8")]
    pub fn take() -> Option<Self> {
        let first = !TAKEN.swap(true, Ordering::AcqRel);
        first.then(|| Networks { not_sync: PhantomData })
    }

    /// The networks, for cores without atomic exchanges (Cortex-M0+) and for programs that keep count themselves.
    ///
    /// # Safety
    /// Nothing else may use them while the value lives.
    pub unsafe fn steal() -> Self {
        Networks { not_sync: PhantomData }
    }
@getters@}

@modules@