//! The command `probe`; everything is in the library.

fn main() -> std::process::ExitCode {
    probe_trace::cli::main()
}
