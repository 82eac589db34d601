//! The crate `ilhook`: an inline hook that calls a function with the registers and goes back (`JmpBack`). It
//! saves the general registers, and on x86-64 the first four vector registers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(target_arch = "x86_64")]
use ilhook::x64 as machine;
#[cfg(target_arch = "x86")]
use ilhook::x86 as machine;
use machine::{CallbackOption, HookFlags, HookPoint, HookType, Hooker, Registers};

static HITS: AtomicU64 = AtomicU64::new(0);

/// The hook; in a box of its own kind, because it is not `Send` by itself.
static PLANTED: Mutex<Option<Planted>> = Mutex::new(None);

struct Planted(HookPoint);

// SAFETY: it is owned bytes and addresses, bound to no thread.
unsafe impl Send for Planted {}

#[cfg(target_arch = "x86_64")]
unsafe extern "win64" fn on_hit(_registers: *mut Registers, _data: usize) {
    HITS.fetch_add(1, Relaxed);
}

#[cfg(target_arch = "x86")]
unsafe extern "cdecl" fn on_hit(_registers: *mut Registers, _data: usize) {
    HITS.fetch_add(1, Relaxed);
}

/// Hooks the function at `function`: 0 if that worked.
///
/// # Safety
/// A function starts there that has 14 bytes, of which no jump goes to any but the first, and nobody runs in
/// it.
#[unsafe(no_mangle)]
unsafe extern "C" fn peer_hook_plant(function: usize) -> i32 {
    let hooker =
        Hooker::new(function, HookType::JmpBack(on_hit), CallbackOption::None, 0, HookFlags::empty());
    // SAFETY: the caller's promise.
    match unsafe { hooker.hook() } {
        Ok(point) => {
            // SAFETY: the hook's jump stands there.
            unsafe { make_executable(function) };
            *PLANTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Planted(point));
            0
        }
        Err(error) => {
            eprintln!("ilhook: {error}");
            1
        }
    }
}

/// Makes two pages executable from where the jump at `function` leads: ilhook 2.3.0 does so with one,
/// although its code, which lies on the heap, may go on in the next.
///
/// # Safety
/// A `jmp rel32` stands there, or `jmp [rip]` before the address.
unsafe fn make_executable(function: usize) {
    const PAGE: usize = 4096;
    let jump = function as *const u8;
    // SAFETY: the caller's.
    let target = match unsafe { jump.read() } {
        // SAFETY: as above.
        0xe9 => function
            .wrapping_add(5)
            .wrapping_add_signed(unsafe { jump.wrapping_add(1).cast::<i32>().read_unaligned() } as isize),
        // SAFETY: as above.
        _ => unsafe { jump.wrapping_add(6).cast::<usize>().read_unaligned() },
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: heap, which stays readable and writable.
    unsafe { libc::mprotect((target & !(PAGE - 1)) as *mut libc::c_void, 2 * PAGE, protection) };
}

/// How often the hook was hit.
#[unsafe(no_mangle)]
extern "C" fn peer_hook_hits() -> u64 {
    HITS.load(Relaxed)
}

/// Takes the hook away. Nobody runs in the function.
#[unsafe(no_mangle)]
extern "C" fn peer_hook_remove() {
    // The hook goes when it is dropped.
    drop(PLANTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take().map(|planted| planted.0));
}
