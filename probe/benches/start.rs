//! What it costs to start a program under `probe trace`, beside the bare program in the same rounds. Prints
//! one flat JSON object: the contract is in `ci/src/bench.rs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Rounds of a program that takes milliseconds.
const ROUNDS: usize = 41;
/// Rounds of one that takes a second.
const FEW_ROUNDS: usize = 7;

/// What one run has taken, in milliseconds.
#[derive(Clone, Copy)]
struct Taken {
    wall: f64,
    /// Processor time, of all processes that were waited for.
    processor: f64,
}

/// The processor time that ended children have taken so far, in milliseconds.
fn of_children() -> f64 {
    // SAFETY: all zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

/// Runs a program to its end.
fn run(words: &[&str], folder: &Path) -> Taken {
    let (processor, start) = (of_children(), Instant::now());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().expect("the program starts");
    assert!(status.success(), "{words:?}: {status}");
    Taken { wall: start.elapsed().as_secs_f64() * 1e3, processor: of_children() - processor }
}

/// The median, and half of the interval that holds the true one with 95 % probability, as a share of it.
fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let (middle, last) = (values.len() / 2, values.len() - 1);
    let distance = (values.len() as f64).sqrt().ceil() as usize;
    let half = (values[(middle + distance).min(last)] - values[middle.saturating_sub(distance)]) / 2.0;
    (values[middle], half / values[middle])
}

/// Prints figures as members of one object.
struct Figures(Vec<String>);

impl Figures {
    fn add(&mut self, name: &str, values: Vec<f64>) {
        let (value, noise) = median(values);
        self.0.push(format!("\"{name}\": {value:.4}, \"{name}.noise\": {noise:.4}"));
    }
}

/// `probe trace` with these arguments.
fn traced<'a>(arguments: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
    [&[env!("CARGO_BIN_EXE_probe"), "trace", "--no-events"], arguments, &["--"], program].concat()
}

/// A program that does nothing: bare; with one probe; with all functions of libc by breakpoint, and by jump.
fn nothing(figures: &mut Figures, folder: &Path) {
    let program = ["/bin/true"];
    let ways = [
        program.to_vec(),
        traced(&["-p", "p libc.so.6:malloc"], &program),
        traced(&["--no-jumps", "-p", "p libc.so.6:*"], &program),
        traced(&["-p", "p libc.so.6:*"], &program),
    ];
    let rounds: Vec<[Taken; 4]> =
        (0..ROUNDS).map(|_| std::array::from_fn(|way| run(&ways[way], folder))).collect();
    let of = |value: &dyn Fn(&[Taken; 4]) -> f64| rounds.iter().map(value).collect::<Vec<_>>();
    figures.add("start.bare_ms", of(&|round| round[0].wall));
    figures.add("start.one_more_ms", of(&|round| round[1].wall - round[0].wall));
    figures.add("start.one_processor_ms", of(&|round| round[1].processor));
    figures.add("start.libc_by_trap_processor_ms", of(&|round| round[2].processor));
    figures.add("start.libc_processor_ms", of(&|round| round[3].processor));
}

/// Twelve short programs in a shell's loop, with all of libc, over bare.
fn a_loop(figures: &mut Figures, folder: &Path) {
    let program = ["bash", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do /bin/true; done"];
    let all = traced(&["-f", "-p", "p libc.so.6:*"], &program);
    let ratio = |_| {
        let bare = run(&program, folder);
        run(&all, folder).wall / bare.wall
    };
    figures.add("start.loop_ratio", (0..FEW_ROUNDS).map(ratio).collect());
}

/// `make -j2` of a hundred files of C with one pattern, over bare.
fn a_build(figures: &mut Figures, folder: &Path) {
    let folder = folder.join("project");
    std::fs::create_dir_all(&folder).expect("a folder for a project");
    let mut makefile = String::from("all: ");
    for file in 0..100 {
        let code =
            format!("#include <stdio.h>\nint f{file}(int a) {{ return printf(\"%d\", a * {file}); }}\n");
        std::fs::write(folder.join(format!("f{file}.c")), code).expect("a file of C");
        makefile.push_str(&format!("f{file}.o "));
    }
    makefile.push_str("\n\t@true\nclean:\n\t@rm -f *.o\n%.o: %.c\n\t@cc -c -o $@ $<\n");
    std::fs::write(folder.join("Makefile"), makefile).expect("a makefile");
    let program = ["make", "-j2", "all"];
    let pattern = traced(&["-f", "-p", "p libc.so.6:mallo*"], &program);
    let ratio = |_| {
        run(&["make", "clean"], &folder);
        let bare = run(&program, &folder);
        run(&["make", "clean"], &folder);
        run(&pattern, &folder).wall / bare.wall
    };
    figures.add("start.make_ratio", (0..FEW_ROUNDS).map(ratio).collect());
}

/// Whether a program can be started.
fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn main() {
    let folder: PathBuf = std::env::temp_dir().join(format!("probe-start-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the benchmark");
    let mut figures = Figures(Vec::new());
    nothing(&mut figures, &folder);
    if is_there("bash") {
        a_loop(&mut figures, &folder);
    }
    if is_there("make") && is_there("cc") {
        a_build(&mut figures, &folder);
    }
    let _ = std::fs::remove_dir_all(&folder);
    println!("{{{}}}", figures.0.join(", "));
}
