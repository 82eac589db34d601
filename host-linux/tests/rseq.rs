//! Nothing in a restartable sequence is probed, and the sequences go on being atomic with probes all around
//! (REG_20).

mod common;

use common::alone;
use probe_host_linux::probe_core::arch::{Arch, Jumps};
use probe_host_linux::probe_core::files::Viewer;
use probe_host_linux::probe_core::host::Host;
use probe_host_linux::probe_core::{CodeAddr, Place};
use probe_host_linux::{Kprobe, Native, Regs, probes};

probe_arch_native::native_module!(mod rseq);

macro_rules! places {
    ($($name:ident)*) => {
        unsafe extern "C" { $(static $name: u8;)* }
    };
}
places! {
    rseq_add_before rseq_add_arms rseq_add_start rseq_add_commit rseq_add_signature rseq_add_abort
    rseq_add_plain_before rseq_add_plain_arms rseq_add_plain_start rseq_add_plain_commit rseq_add_plain_signature
    rseq_add_plain_abort
}

// Their addresses are the caller's to give there, so that nothing else keeps the linker from dropping them.
#[cfg(any(target_arch = "powerpc", target_arch = "powerpc64"))]
places! { rseq_add_descriptor rseq_add_plain_descriptor }

/// One function with a sequence in it.
struct Adder {
    name: &'static str,
    before: usize,
    arms: usize,
    start: usize,
    commit: usize,
    signature: usize,
    abort: usize,
}

fn adders() -> [Adder; 2] {
    [
        Adder {
            name: "rseq_add",
            before: (&raw const rseq_add_before).addr(),
            arms: (&raw const rseq_add_arms).addr(),
            start: (&raw const rseq_add_start).addr(),
            commit: (&raw const rseq_add_commit).addr(),
            signature: (&raw const rseq_add_signature).addr(),
            abort: (&raw const rseq_add_abort).addr(),
        },
        Adder {
            name: "rseq_add_plain",
            before: (&raw const rseq_add_plain_before).addr(),
            arms: (&raw const rseq_add_plain_arms).addr(),
            start: (&raw const rseq_add_plain_start).addr(),
            commit: (&raw const rseq_add_plain_commit).addr(),
            signature: (&raw const rseq_add_plain_signature).addr(),
            abort: (&raw const rseq_add_plain_abort).addr(),
        },
    ]
}

impl Adder {
    /// Every instruction, and why no probe may stand there.
    fn instructions(&self) -> Vec<(CodeAddr, Option<&'static str>)> {
        let mut bounds = (0, 0);
        probes().host().find_symbols(self.name, &mut |symbol| {
            bounds = (symbol.start.as_usize(), symbol.start.as_usize() + symbol.len_bytes);
        });
        let (mut at, end) = bounds;
        let mut all = Vec::new();
        while at < end {
            let mut insn = [0; 16];
            let read =
                probes().host().read_text(CodeAddr::new(at), &mut insn[..Native::MAX_INSN_LEN.min(16)]);
            let is_inside = (self.start..self.commit).contains(&at);
            let why = match at {
                at if at == self.arms => Some("place.rseq_start"),
                at if at == self.signature => Some("place.rseq_signature"),
                _ => is_inside.then_some("place.rseq"),
            };
            all.push((CodeAddr::new(at), why));
            at += Native::insn_len(at.into(), &insn[..read]).unwrap_or(Native::INSN_ALIGN);
        }
        assert!(all.iter().any(|(at, _)| at.as_usize() == self.abort), "{}", self.name);
        all
    }
}

/// How many bytes a jump has, 0 where there are none.
const fn jump_len<J: Jumps<Regs>>() -> usize {
    J::JUMP_LEN
}

#[test]
fn reg_20_nothing_in_a_restartable_sequence_is_probed() {
    let _alone = alone();
    #[cfg(any(target_arch = "powerpc", target_arch = "powerpc64"))]
    std::hint::black_box([&raw const rseq_add_descriptor, &raw const rseq_add_plain_descriptor]);
    for adder in adders() {
        let mut refused = 0;
        for (at, why) in adder.instructions() {
            let place = Place::addr(at);
            let result = probes().register(Kprobe::at(place.clone()).pre(|_| ()));
            let code = result.as_ref().err().map(|error| error.code());
            assert_eq!(code, why, "{} at {at}", adder.name);
            assert_eq!(probes().explain(&place).err().map(|error| error.code()), code);
            refused += usize::from(code.is_some());
        }
        assert!(refused >= 6, "{}: {refused}", adder.name);
        // A jump before it must not displace what arms it: a breakpoint stands there instead.
        let before = CodeAddr::new(adder.before);
        let told = probes().explain(&Place::addr(before)).unwrap();
        let is_displaced = jump_len::<<Native as Arch>::Jumps>() > told.insn.len();
        let expected = match Native::JUMPS {
            None => Some("core.no_jumps"),
            Some(_) => is_displaced.then_some("place.rseq_start"),
        };
        assert_eq!(told.jump.err().map(|refusal| refusal.code), expected);
        let mut listing = String::new();
        probes().files().blacklist(&mut listing, Viewer::Privileged).unwrap();
        let line = format!(
            "0x{:0width$x}-0x{:0width$x}\t",
            adder.start,
            adder.commit,
            width = 2 * size_of::<usize>()
        );
        assert!(listing.contains(&line), "{line}");
    }
}

/// The kernel's area of this thread, and how C libraries tell where it is.
#[cfg(all(any(target_arch = "x86_64", target_arch = "x86"), target_env = "gnu"))]
mod counted {
    use super::*;
    use probe_host_linux::probe_core::Switch;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// One CPU's count, in a cache line of its own.
    #[repr(C, align(64))]
    struct Cell(AtomicUsize);

    const CPUS: usize = 256;
    static CELLS: [Cell; CPUS] = [const { Cell(AtomicUsize::new(0)) }; CPUS];
    const THREADS: usize = 4;
    const ROUNDS: usize = 3_000;

    unsafe extern "C" {
        fn rseq_add(area: usize, cells: *const Cell);
        fn rseq_add_plain(area: usize, cells: *const Cell);
    }

    /// The thread's `struct rseq`, which the C library has registered; `None` where the kernel has no such
    /// thing.
    fn area() -> Option<usize> {
        // SAFETY: C strings; both are data symbols of glibc since 2.35.
        let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()) };
        // SAFETY: as above.
        let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
        if size.is_null() || offset.is_null() {
            return None;
        }
        // SAFETY: an unsigned int that never changes.
        let size = unsafe { size.cast::<u32>().read() };
        // SAFETY: a ptrdiff_t that never changes.
        let offset = unsafe { offset.cast::<isize>().read() };
        let thread: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads the first word of this thread's control block, which is its address (ELF TLS ABI,
        // variant II).
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(readonly, nostack));
        }
        #[cfg(target_arch = "x86")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("mov {}, gs:[0]", out(reg) thread, options(readonly, nostack));
        }
        (size != 0).then(|| thread.wrapping_add_signed(offset))
    }

    /// How many of all additions by several threads were lost.
    fn lost(add: unsafe extern "C" fn(usize, *const Cell)) -> usize {
        CELLS.iter().for_each(|cell| cell.0.store(0, Relaxed));
        let together = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let area = area().expect("every thread has one");
                    together.wait();
                    for _ in 0..ROUNDS {
                        // SAFETY: the kernel's area of this thread, and a cell for every CPU.
                        unsafe { add(area, CELLS.as_ptr()) };
                    }
                });
            }
        });
        THREADS * ROUNDS - CELLS.iter().map(|cell| cell.0.load(Relaxed)).sum::<usize>()
    }

    #[test]
    fn reg_20_sequences_stay_atomic_with_probes_all_around() {
        let _alone = alone();
        if area().is_none() {
            println!("skipped: the kernel has no restartable sequences here");
            return;
        }
        for (adder, add) in adders().into_iter().zip([rseq_add, rseq_add_plain]) {
            let add: unsafe extern "C" fn(usize, *const Cell) = add;
            assert_eq!(lost(add), 0, "without probes");
            for is_optimised in [false, true] {
                let places = adder.instructions();
                let mut planted: Vec<_> = Vec::new();
                for (at, _) in &places {
                    planted.extend(probes().register(Kprobe::at(Place::addr(*at)).pre(|_| ())));
                }
                planted.push(
                    probes().register(probe_host_linux::Kretprobe::at(adder.name).exit(|_, ()| ())).unwrap(),
                );
                if is_optimised {
                    probes().jumps().set_automatic(Switch::On);
                }
                assert_eq!(lost(add), 0, "{} with {} probes", adder.name, planted.len());
                let hits = planted.iter().map(|probe| probe.counters().hits).max();
                assert!(hits >= Some((THREADS * ROUNDS) as u64), "{hits:?}");
                probes().jumps().set_automatic(Switch::Off);
            }
        }
    }
}
