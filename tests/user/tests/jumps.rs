//! Jumps instead of breakpoints, in this process: that they are there, and that they come and go while
//! threads run in the very bytes (SAFE_3).
//!
//! `PROBE_JUMP_CYCLES=1000000 cargo test --release -p probe-tests-user --test jumps` is the long form.

probe_arch_native::native_module!(mod jump_machine by family);

use jump_machine::{PUSHED, make_42, move_stack};
use probe_core::Place;
use probe_core::arch::{Arch, Regs};
use probe_core::files::Viewer;
use probe_core::handler::Hit;
use probe_host_linux::{Kprobe, Kretprobe, Native, probes, start};
use probe_tests_user::heap::{Counting, live_bytes};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Lets threads end, also where an assertion has failed.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What this process has of what could leak.
#[derive(Debug, Default, PartialEq, Eq)]
struct Memory {
    heap_bytes: i64,
    code_bytes: usize,
}

impl Memory {
    fn now() -> Self {
        let heap_bytes = live_bytes();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let code = maps.lines().filter(|line| line.contains("r-xp") || line.contains("rwxp"));
        let len = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            usize::from_str_radix(end, 16).unwrap() - usize::from_str_radix(start, 16).unwrap()
        };
        Self { heap_bytes, code_bytes: code.map(len).sum() }
    }
}

/// One test at a time: jumps are laid for all probes at once.
static ALONE: Mutex<()> = Mutex::new(());

macro_rules! victim {
    ($name:ident, $add:literal) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(a: usize, b: usize) -> usize {
            let mut words = [a; 4];
            black_box(&mut words);
            words[a & 3].wrapping_mul(black_box(b)).wrapping_add($add)
        }
    };
}

victim!(jump_victim_a, 1);
victim!(jump_victim_b, 2);
victim!(jump_victim_c, 3);

type Victim = extern "C" fn(usize, usize) -> usize;

/// Name, function, and what it makes of two numbers.
type Case = (&'static str, Victim, fn(usize, usize) -> usize);

fn victims() -> Vec<Case> {
    let everywhere: [Case; 2] = [
        ("jump_victim_a", jump_victim_a, |a, b| a.wrapping_mul(b).wrapping_add(1)),
        ("jump_victim_b", jump_victim_b, |a, b| a.wrapping_mul(b).wrapping_add(2)),
    ];
    everywhere.into_iter().chain(jump_machine::victims()).collect()
}

/// How many lines of the list say that a jump is there.
fn optimised() -> usize {
    let mut list = String::new();
    probes().files().list(&mut list, Viewer::Privileged).unwrap();
    list.lines().filter(|line| line.ends_with("[OPTIMIZED]")).count()
}

#[test]
fn every_entry_gets_a_jump_and_the_handlers_run() {
    let _alone = ALONE.lock().unwrap();
    start().unwrap();
    let victims = victims();
    let held: Vec<_> = victims
        .iter()
        .map(|(name, ..)| {
            probes().register(Kprobe::at(*name).pre(|hit| assert!(hit.argument(0) == Some(6)))).unwrap()
        })
        .collect();
    assert_eq!(probes().jumps().lay(), Ok(victims.len()));
    assert_eq!(optimised(), victims.len());
    for (name, victim, value) in &victims {
        assert_eq!(black_box(*victim)(6, 7), value(6, 7), "{name}");
    }
    assert!(held.iter().all(|probe| (probe.counters().hits, probe.counters().missed_nested) == (1, 0)));
    probes().jumps().lift().unwrap();
    assert_eq!(optimised(), 0);
}

#[test]
fn ret_8_a_backtrace_from_a_handler_shows_the_callers() {
    static TRACE: Mutex<String> = Mutex::new(String::new());
    #[inline(never)]
    fn the_caller_of_the_victim() -> usize {
        black_box(jump_victim_c as Victim)(2, 3) + 1
    }
    let _alone = ALONE.lock().unwrap();
    start().unwrap();
    let probe = Kprobe::at("jump_victim_c")
        .pre(|_| *TRACE.lock().unwrap() = std::backtrace::Backtrace::force_capture().to_string());
    let _probe = probes().register(probe).unwrap();
    assert_eq!(probes().jumps().lay(), Ok(1));
    assert_eq!(the_caller_of_the_victim(), 10);
    let trace = TRACE.lock().unwrap().clone();
    assert!(trace.contains("the_caller_of_the_victim"), "{trace}");
}

#[test]
fn hit_3_post_handlers_of_jumps_see_what_the_first_instruction_has_done() {
    let _alone = ALONE.lock().unwrap();
    start().unwrap();
    let victims = victims();
    let nexts: Vec<AtomicU64> = victims.iter().map(|_| AtomicU64::new(0)).collect();
    let nexts: &'static [AtomicU64] = Vec::leak(nexts);
    let count = |index: usize| {
        move |hit: &mut Hit<'_, Native>| nexts[index].store(hit.regs().pc().as_usize() as u64, Relaxed)
    };
    let held: Vec<_> = victims
        .iter()
        .enumerate()
        .map(|(index, (name, ..))| {
            probes().register(Kprobe::at(*name).pre(|_| ()).post(count(index))).unwrap()
        })
        .collect();
    assert_eq!(probes().jumps().lay(), Ok(victims.len()));
    for ((name, victim, value), (probe, next)) in victims.iter().zip(held.iter().zip(nexts)) {
        assert_eq!(black_box(*victim)(6, 7), value(6, 7), "{name}");
        let first = probes().explain(&Place::addr(probe.addr())).unwrap().insn.len();
        assert_eq!(next.load(Relaxed) as usize, probe.addr().as_usize() + first, "{name}");
        assert_eq!(probe.counters().hits, 1, "{name}");
    }
}

/// How far a handler lowers the stack pointer: further than all that runs below it while the hit lasts.
const MOST: usize = 1 << 15;

/// Returns 42. At `jump_victim_simulated` is an instruction that is simulated, on x86 a push.
#[inline(never)]
#[expect(named_asm_labels, reason = "a probe is to stand there, and there is one copy of the function")]
fn simulated_victim() -> usize {
    let result: usize;
    // SAFETY: a register is saved on the stack and loaded again, or nothing; a label that nobody else has.
    unsafe {
        std::arch::asm!(
            ".globl jump_victim_simulated",
            "jump_victim_simulated:",
            make_42!(),
            out(reg) result,
        );
    }
    result
}

/// By a jump also by so little that what is pushed lies where the hit has its own data.
#[test]
fn hit_2_a_pre_handler_may_lower_the_stack_pointer_of_a_simulated_instruction() {
    static PLACE_SP: AtomicU64 = AtomicU64::new(0);
    static POST_SP: AtomicU64 = AtomicU64::new(0);
    static LOWER: AtomicUsize = AtomicUsize::new(MOST);
    static BEFORE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static AFTER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    /// The stack pointer, the program counter, and what is the machine's.
    const NOT_COMPARED: [&str; 16] = [
        "rsp",
        "esp",
        "sp",
        "r1",
        "gpr1",
        "epc",
        "rip",
        "eip",
        "ip",
        "pc",
        "nip",
        "msr",
        "softe",
        "trap",
        "pstate",
        "orig_gpr3",
    ];
    /// All other registers.
    fn others(hit: &Hit<'_, Native>) -> Vec<usize> {
        let regs = hit.regs();
        let names = <Native as Arch>::Regs::names().iter();
        let others = names.filter(|(name, _)| !NOT_COMPARED.contains(name));
        others.filter_map(|(_, number)| regs.register(*number)).collect()
    }
    unsafe extern "C" {
        static jump_victim_simulated: u8;
    }
    let _alone = ALONE.lock().unwrap();
    start().unwrap();
    assert_eq!(black_box(simulated_victim)(), 42);
    let pre = |hit: &mut Hit<'_, Native>| {
        PLACE_SP.store(hit.regs().sp() as u64, Relaxed);
        *BEFORE.lock().unwrap() = others(hit);
        move_stack(hit.regs_mut(), -(LOWER.load(Relaxed) as isize));
    };
    let post = |hit: &mut Hit<'_, Native>| {
        let sp = hit.regs().sp();
        POST_SP.store(sp as u64, Relaxed);
        let from = std::ptr::with_exposed_provenance::<usize>(sp);
        let lower = LOWER.load(Relaxed);
        let to = std::ptr::with_exposed_provenance_mut::<usize>(sp + lower);
        if PUSHED != 0 {
            // What was pushed goes along.
            // SAFETY: the instruction has pushed it just now.
            let pushed = unsafe { from.read() };
            // SAFETY: where it would have been pushed.
            unsafe { to.write(pushed) };
        }
        move_stack(hit.regs_mut(), lower as isize);
        *AFTER.lock().unwrap() = others(hit);
    };
    let place = (&raw const jump_victim_simulated).addr();
    let probe = probes().register(Kprobe::at(Place::addr(place.into())).pre(pre).post(post)).unwrap();
    // Where traps have their data is the host's business.
    let by_trap = [MOST; 9].into_iter();
    let by_jump = (16..=320).step_by(16).chain([MOST]);
    for (lower, hits) in by_trap.chain(by_jump).zip(1..) {
        if hits == 10 {
            assert_eq!(probes().jumps().lay(), Ok(1));
        }
        LOWER.store(lower, Relaxed);
        POST_SP.store(0, Relaxed);
        assert_eq!(black_box(simulated_victim)(), 42);
        assert_eq!(PLACE_SP.load(Relaxed), POST_SP.load(Relaxed) + (lower + PUSHED) as u64, "hit {hits}");
        assert_eq!(*BEFORE.lock().unwrap(), *AFTER.lock().unwrap(), "lowered by {lower}, hit {hits}");
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (hits, 0));
    }
    assert_eq!(optimised(), 1);
}

#[test]
fn safe_3_jumps_come_and_go_in_bytes_that_threads_execute() {
    let _alone = ALONE.lock().unwrap();
    start().unwrap();
    let default = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) { 3_000 } else { 100 };
    let cycles: usize = std::env::var("PROBE_JUMP_CYCLES").map_or(default, |cycles| cycles.parse().unwrap());
    let victims = victims();
    let posts: &'static AtomicU64 = Box::leak(Box::default());
    let count = |_: &mut Hit<'_, Native>| {
        posts.fetch_add(1, Relaxed);
    };
    // Every other one has a post handler.
    let probe = |(index, (name, ..)): (usize, &Case)| {
        let probe = Kprobe::at(*name).pre(|_| ());
        probes().register(if index % 2 == 0 { probe.post(count) } else { probe }).unwrap()
    };
    let held: Vec<_> = victims.iter().enumerate().map(probe).collect();
    let ret = Kretprobe::at("jump_victim_a").max_active(8).entry(|_| Some(())).exit(|_, ()| ());
    let ret = probes().register(ret).unwrap();
    let is_over = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    // What the starting of threads allocates is freed behind it.
    let started = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (victims, is_over, calls, started) = (&victims, &is_over, &calls, &started);
            scope.spawn(move || {
                started.wait();
                let mut n = thread;
                while !is_over.load(Relaxed) {
                    for (name, victim, value) in victims {
                        n = n.wrapping_add(1);
                        assert_eq!(black_box(*victim)(n, 3), value(n, 3), "{name}");
                    }
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        let _ending = Ending(&is_over);
        started.wait();
        let mut quiet = Memory::default();
        let start = Instant::now();
        for cycle in 0..cycles {
            assert_eq!(probes().jumps().lay(), Ok(victims.len()));
            if cycle % 16 == 1 {
                // A post handler that comes to a jump without the call for it: another detour, the first
                // time.
                let other = probes().register(Kprobe::at("jump_victim_b").post(|_| ())).unwrap();
                assert_eq!(probes().jumps().lay(), Ok(victims.len()));
                drop(other);
            }
            probes().jumps().lift().unwrap();
            if cycle == 32 {
                quiet = Memory::now();
            } else if cycle % 10_000 == 32 {
                assert_eq!(Memory::now(), quiet, "something is left of {cycle} cycles");
                println!("{cycle} cycles so far, {} calls of each function", calls.load(Relaxed));
            }
        }
        if cycles > 32 {
            assert_eq!(Memory::now(), quiet, "something is left of {cycles} cycles");
        }
        let (seconds, calls) = (start.elapsed().as_secs_f64(), calls.load(Relaxed));
        println!("{cycles} cycles in {seconds:.0} s, {calls} calls of each function meanwhile; {quiet:?}");
    });
    let calls = calls.load(Relaxed);
    for (probe, (name, ..)) in held.iter().zip(&victims) {
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (calls, 0), "{name}");
    }
    assert_eq!(posts.load(Relaxed), calls * held.len().div_ceil(2) as u64);
    assert_eq!((ret.counters().hits, ret.counters().missed_pool), (calls, 0));
}

/// libc as an object of its own.
#[cfg(target_env = "gnu")]
mod libc {
    use super::*;
    use probe_core::CodeAddr;
    use probe_host_linux::guard_signals;
    use std::collections::BTreeSet;

    /// `probe trace` relies on it: a function's entry is where probes usually stand.
    #[test]
    #[cfg_attr(target_arch = "riscv64", ignore = "a jump reaches 1 MiB, where objects lie close together")]
    fn almost_all_entries_of_libc_get_a_jump() {
        let _alone = ALONE.lock().unwrap();
        start().unwrap();
        let guard = guard_signals().unwrap();
        assert!(guard.is_complete());
        let mut entries = BTreeSet::new();
        probes().host().for_each_symbol(&mut |symbol, object| {
            if object.starts_with("libc.so") && symbol.len_bytes > 0 {
                entries.insert(symbol.start.wrapping_add(symbol.local_entry.into()));
            }
        });
        let probe = |at| Kprobe::at(Place::addr(at)).pre(|_| ());
        let can_be_probed = |at: &&CodeAddr| probes().explain(&Place::addr(**at)).is_ok();
        let wanted: Vec<_> = entries.iter().filter(can_be_probed).copied().map(probe).collect();
        let count = wanted.len();
        assert!(count > 1_500, "{count} functions in libc");
        let held = probes().register_all(wanted).unwrap();
        let jumps = probes().jumps().lay().unwrap();
        drop(held);
        println!("{jumps} of {count} entries have jumps");
        let share = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) { 0.90 } else { 0.99 };
        assert!(jumps as f64 >= share * count as f64, "{jumps} of {count}");
        drop(guard);
    }
}
