//! The C functions on structures that say anything a caller may say: any address, any offset, any name, any
//! flag, any count. Whatever is registered is removed again, and nothing has changed then.

use probe_c::process::probe_start;
use probe_c::register::{
    disable_kprobe, enable_kprobe, register_jprobe, register_kprobe, register_kretprobe,
};
use probe_c::register::{unregister_jprobe, unregister_kprobe, unregister_kretprobe};
use probe_c::types::{KPROBE_FLAG_UNCHECKED, jprobe, kprobe, kretprobe};
use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The function that probes may come to stand on, over and over.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn fuzz_probed(x: usize) -> usize {
    black_box(x) * 3 + 1
}

/// A jprobe's handler for it.
extern "C" fn jumped(x: usize) -> usize {
    black_box(x)
}

/// Probes are a process's own.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What a structure says, read from the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> usize {
        (0..size_of::<usize>()).fold(0, |word, _| word << 8 | usize::from(self.byte()))
    }

    /// Names that exist, that almost exist, that cannot.
    fn name(&mut self) -> Option<CString> {
        let known =
            ["fuzz_probed", "fuzz_prob", "", "malloc:", ":", "libc.so.6:", "\u{fffd}", "fuzz_probed+1"];
        match self.byte() {
            0..=63 => None,
            index @ 64..=191 => CString::new(known[usize::from(index) % known.len()]).ok(),
            len => {
                let name: Vec<_> = (0..len % 16).map(|_| self.byte()).filter(|byte| *byte != 0).collect();
                CString::new(name).ok()
            }
        }
    }

    fn place(&mut self, name: &Option<CString>) -> kprobe {
        let function = fuzz_probed as *const () as usize;
        let addr = match self.byte() % 6 {
            0 | 1 => 0,
            2 => function,
            3 => function + usize::from(self.byte() % 16),
            4 => ptr::from_ref(&ONE_AT_A_TIME) as usize,
            _ => self.word() | 1 << 12,
        };
        // SAFETY: for this structure all zeros mean nothing said.
        let mut kp: kprobe = unsafe { std::mem::zeroed() };
        kp.addr = addr as *mut c_void;
        kp.symbol_name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        kp.offset = if self.byte() & 1 == 0 { u32::from(self.byte() % 16) } else { self.word() as u32 };
        // Not the flag that vouches for an address: that is the caller's promise.
        kp.flags = self.word() as u32 & !KPROBE_FLAG_UNCHECKED;
        kp
    }
}

/// Registers what the input says, uses it, removes it.
pub fn arguments(data: &[u8]) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(probe_start(), 0);
    let mut input = Input(data);
    for _ in 0..4 {
        let kind = input.byte() % 3;
        let name = input.name();
        let kp = input.place(&name);
        match kind {
            0 => kprobe_once(kp),
            1 => kretprobe_once(kp, &mut input),
            _ => jprobe_once(kp, &mut input),
        }
        assert_eq!(fuzz_probed(5), 16);
    }
}

/// Whether an answer is 0 or a negative errno with a reason.
fn is_done(answer: i32, kp: &kprobe) -> bool {
    assert!(answer <= 0 && answer > -200, "{answer}");
    assert_eq!(answer != 0, kp.reason[0] != 0, "every refusal has its reason: {answer}");
    answer == 0
}

fn kprobe_once(mut kp: kprobe) {
    // SAFETY: the structure is ours, its name ends with NUL, it has no handlers.
    let answer = unsafe { register_kprobe(&raw mut kp) };
    let is_registered = is_done(answer, &kp);
    // SAFETY: as above.
    let again = unsafe { register_kprobe(&raw mut kp) };
    assert!(!is_registered || again != 0, "registered twice");
    // SAFETY: as above.
    let enabled = unsafe { enable_kprobe(&raw mut kp) };
    // SAFETY: as above.
    let disabled = unsafe { disable_kprobe(&raw mut kp) };
    assert_eq!((enabled == 0, disabled == 0), (is_registered, is_registered));
    assert_eq!(fuzz_probed(5), 16);
    // SAFETY: as above; what is not registered is told.
    unsafe { unregister_kprobe(&raw mut kp) };
    // SAFETY: as above.
    assert_ne!(unsafe { enable_kprobe(&raw mut kp) }, 0, "not registered any more");
}

fn kretprobe_once(kp: kprobe, input: &mut Input<'_>) {
    // SAFETY: for this structure all zeros mean nothing said.
    let mut rp: kretprobe = unsafe { std::mem::zeroed() };
    rp.kp = kp;
    rp.maxactive = if input.byte() & 1 == 0 { i32::from(input.byte() as i8) } else { input.word() as i32 };
    rp.data_size = if input.byte() & 1 == 0 { usize::from(input.byte()) } else { input.word() };
    // SAFETY: the structure is ours, its name ends with NUL, it has no handlers.
    let answer = unsafe { register_kretprobe(&raw mut rp) };
    is_done(answer, &rp.kp);
    assert_eq!(fuzz_probed(5), 16);
    // SAFETY: as above.
    unsafe { unregister_kretprobe(&raw mut rp) };
}

fn jprobe_once(kp: kprobe, input: &mut Input<'_>) {
    let entry = if input.byte() & 3 == 0 { ptr::null() } else { jumped as *const c_void };
    let mut jp = jprobe { kp, entry };
    // SAFETY: the structure is ours, its name ends with NUL, the handler takes what the only function that
    // can be called takes.
    let answer = unsafe { register_jprobe(&raw mut jp) };
    is_done(answer, &jp.kp);
    assert_eq!(fuzz_probed(5), 16);
    // SAFETY: as above.
    unsafe { unregister_jprobe(&raw mut jp) };
}
