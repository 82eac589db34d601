//! What runs in the program before its `main`: plants what the control file names, and says what came of it.
//!
//! The control file is text, one item per line:
//!
//! ```text
//! step | pre | post        probes that are disabled, or with these handlers
//! PATH                     where the answer goes; PATH.hits: two numbers of 64 bits for each place, pre and post handlers run
//! object NAME              what follows lies in this object
//! HEX                      the address of an instruction, as the object's file has it
//! ```
//!
//! So is the answer: `begins HEX`, `ends HEX`: where counting begins and ends; `object NAME HEX`: what is
//! added to its addresses; `refused INDEX CODE SENTENCE`, `method NAME COUNT`; `guarded HEX`: a system call
//! that the guard makes itself.

mod memory;

use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr, Place};
use probe_host_linux::{Kprobe, Native, guard, probes, set_log, signals, start};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Names the control file.
const CONTROL: &str = "PROBE_EVERYTHING_CONTROL";
/// Set in a program that runs under QEMU: a plugin counts there.
const PLUGIN: &str = "PROBE_EVERYTHING_COUNTS";
/// `close` of this "descriptor" tells the plugin where counting begins and ends.
const ANNOUNCE: usize = 0x5741_4c4b;

/// The linker's list of constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

/// Whether handlers count.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

extern "C" fn constructor() {
    let Some(control) = std::env::var_os(CONTROL) else { return };
    if let Err(error) = run(Path::new(&control)) {
        eprintln!("everything: {error}");
        // SAFETY: ends the process; nothing of the program's has run.
        unsafe { libc::_exit(99) }
    }
}

/// What a control file says.
struct Control<'a> {
    mode: &'a str,
    answer: &'a str,
    /// The objects, each with its addresses.
    objects: Vec<(&'a str, Vec<usize>)>,
}

impl<'a> Control<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.lines();
        let (mode, answer) = (lines.next()?, lines.next()?);
        let mut objects: Vec<(&str, Vec<usize>)> = Vec::new();
        for line in lines {
            match line.strip_prefix("object ") {
                Some(name) => objects.push((name, Vec::new())),
                None => objects.last_mut()?.1.push(usize::from_str_radix(line, 16).ok()?),
            }
        }
        Some(Self { mode, answer, objects })
    }
}

fn run(control: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(control).map_err(|error| error.to_string())?;
    let control = Control::parse(&text).ok_or("the control file cannot be understood")?;
    let loaded = loaded();
    let mut places = Vec::new();
    let mut answer = String::new();
    for (name, addresses) in &control.objects {
        // Another program, which this one executes.
        let Some((_, bias)) = loaded.iter().find(|object| object.0 == *name) else { return Ok(()) };
        let _ = writeln!(answer, "object {name} {bias:x}");
        places.extend(addresses.iter().map(|address| bias.wrapping_add(*address)));
    }
    set_log(|_| {});
    start().map_err(|error| error.to_string())?;
    // SAFETY: a name; the function stays.
    let ends = entry_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_exit".as_ptr()) });
    let begins = entry_of(everything_begins as *const c_void);
    let _ = writeln!(answer, "begins {begins:x}\nends {ends:x}");
    let tally = tally(&format!("{}.hits", control.answer), 2 * places.len())?;
    plant(&places, control.mode, ends, tally, &mut answer)?;
    std::fs::write(control.answer, answer).map_err(|error| error.to_string())?;
    if control.mode == "step" {
        stop(begins, ends);
    }
    everything_begins();
    Ok(())
}

/// Where counting begins.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn everything_begins() {
    IS_COUNTING.store(true, Relaxed);
}

/// Waits for whoever single-steps this process, or tells the plugin.
fn stop(begins: usize, ends: usize) {
    if std::env::var_os(PLUGIN).is_some() {
        // SAFETY: no such descriptor is open, and the kernel's `close` does not look at the rest.
        unsafe { libc::syscall(libc::SYS_close, ANNOUNCE, begins, ends) };
    } else {
        // SAFETY: stops until the parent steps on.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// The code behind a function's address: on ppc64 ELFv1 the first word of the descriptor.
fn code_of(function: *const c_void) -> usize {
    if cfg!(target_abi = "elfv1") {
        // SAFETY: on that ABI a function pointer points to its descriptor.
        unsafe { function.cast::<usize>().read() }
    } else {
        function as usize
    }
}

/// What every call of a function executes: on ppc64 ELFv2 its local entry, which the global one leads to.
fn entry_of(function: *const c_void) -> usize {
    let code = code_of(function);
    let mut entry = code;
    probes()
        .host()
        .symbol_at(CodeAddr::new(code), &mut |symbol| entry = code + usize::from(symbol.local_entry));
    entry
}

/// The loaded objects: file name, and what is added to the file's addresses.
fn loaded() -> Vec<(String, usize)> {
    let mut objects: Vec<(String, usize)> = Vec::new();
    // SAFETY: `add` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut objects).cast()) };
    if let (Some(program), Ok(path)) = (objects.first_mut(), std::fs::read_link("/proc/self/exe")) {
        program.0 = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    objects
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _len: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the list of `loaded`, used by nobody else meanwhile.
    let objects = unsafe { &mut *objects.cast::<Vec<(String, usize)>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: a NUL-terminated name of the loader's.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes())).file_name().unwrap_or_default();
    objects.push((name.to_string_lossy().into_owned(), info.dlpi_addr as usize));
    0
}

/// So many numbers in a file, which outlive the process however it ends.
fn tally(path: &str, len: usize) -> Result<&'static [AtomicU64], String> {
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.map_err(|error| format!("{path}: {error}"))?;
    let len_bytes = (len * 8).max(8);
    file.set_len(len_bytes as u64).map_err(|error| format!("{path}: {error}"))?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let hint = std::ptr::null_mut();
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { libc::mmap(hint, len_bytes, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(format!("{path} cannot be mapped"));
    }
    // SAFETY: so many bytes are mapped for good, page aligned, zero.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

/// Plants a probe on every place that can have one, in one batch, and says which cannot and why.
fn plant(
    at: &[usize],
    mode: &str,
    ends: usize,
    tally: &'static [AtomicU64],
    answer: &mut String,
) -> Result<(), String> {
    // SAFETY: an instruction starts at each: so it was decoded from a function's start, or executed.
    let place = |&at: &usize| unsafe { Place::unchecked(CodeAddr::new(at)) };
    let places: Vec<Place> = at.iter().map(place).collect();
    let mut batch: Vec<(usize, AnyProbe<Native>)> = Vec::new();
    let mut methods: BTreeMap<String, u64> = BTreeMap::new();
    for (index, explained) in probes().explain_all(&places).into_iter().enumerate() {
        match explained {
            Ok(explained) => {
                *methods.entry(format!("{:?}", explained.method).to_lowercase()).or_default() += 1;
                let tally = &tally[2 * index..][..2];
                batch.push((at[index], probe(at[index], mode, ends, tally)));
            }
            Err(error) => {
                let _ = writeln!(answer, "refused {index} {} {error}", error.code());
            }
        }
    }
    // What is called for each breakpoint that is written (the loader's list is looked at) gets its own last.
    let (late, mut batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|&(at, _)| is_late(at));
    batch.extend(late);
    let guarded = if mode == "step" { Vec::new() } else { guard::probes() };
    let guards = guarded.len();
    // The guard's own come first, so that ours run before them.
    let all: Vec<AnyProbe<Native>> =
        guarded.into_iter().chain(batch.into_iter().map(|(_, probe)| probe)).collect();
    let planted = probes().register_all(all);
    let planted = planted.map_err(|failed| format!("probe {} is refused: {}", failed.index, failed.error))?;
    for (index, probe) in planted.into_iter().enumerate() {
        if index < guards {
            let _ = writeln!(answer, "guarded {:x}", probe.leak().addr().as_usize());
        } else {
            probe.leak();
        }
    }
    for (method, count) in methods {
        let _ = writeln!(answer, "method {method} {count}");
    }
    if mode == "step" {
        // The guard would show the program its own actions, which are these; nothing traps.
        for signal in signals::OWNED {
            // SAFETY: every signal may have its default.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    } else if guards != 0 {
        // The kernel refuses no action that it has taken before.
        let _ = signals::defer_asynchronous();
    }
    Ok(())
}

/// Whether the library itself calls what lies at `at` for each breakpoint.
fn is_late(at: usize) -> bool {
    static LATE: OnceLock<Vec<usize>> = OnceLock::new();
    let names = [
        c"dl_iterate_phdr",
        c"pthread_mutex_lock",
        c"pthread_mutex_unlock",
        c"pwrite64",
        c"fstat64",
        c"fstatat64",
    ];
    // SAFETY: names; the functions stay.
    let find = |name: &CStr| code_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    // With their helpers around them, which have no names.
    LATE.get_or_init(|| names.map(find).into()).iter().any(|start| at.abs_diff(*start) < 0x1000)
}

/// A probe that counts. Where the program is counted by other means, it is disabled: the program finds its
/// memory as it will find it with probes.
fn probe(at: usize, mode: &str, ends: usize, tally: &'static [AtomicU64]) -> AnyProbe<Native> {
    // SAFETY: as in `plant`.
    let place = unsafe { Place::unchecked(CodeAddr::new(at)) };
    if at == ends && mode != "step" {
        return Kprobe::at(place).pre(|_| IS_COUNTING.store(false, Relaxed)).into();
    }
    let count = |tally: &AtomicU64| {
        if IS_COUNTING.load(Relaxed) {
            tally.fetch_add(1, Relaxed);
        }
    };
    let probe = Kprobe::at(place).pre(move |_| count(&tally[0]));
    match mode {
        "step" => probe.disabled().into(),
        "post" => probe.post(move |_| count(&tally[1])).into(),
        _ => probe.into(),
    }
}
