//! The assembly that every architecture has (a thread's word, the copy that survives faults, the system
//! call), of which its file gives the instructions; its Rust side.

/// Begins a function in assembly: its symbol, which on ELFv1 is its descriptor's, and the label `NAME_code`.
#[cfg(target_abi = "elfv1")]
macro_rules! function {
    ($name:literal) => {
        concat!(
            ".pushsection .opd,\"aw\",@progbits\n.balign 8\n",
            $name,
            ": .quad ",
            $name,
            "_code, .TOC.@tocbase, 0\n.popsection\n",
            $name,
            "_code:"
        )
    };
}
#[cfg(not(target_abi = "elfv1"))]
macro_rules! function {
    ($name:literal) => {
        concat!($name, ":\n", $name, "_code:")
    };
}
pub(crate) use function;

/// The thread's word of so many bytes, `probe_host_linux_copy`, `probe_host_linux_syscall`. A fault in
/// `copy` goes on at `leave`.
macro_rules! shared_assembly {
    (
        word: $word:literal,
        $(enter: [$($enter:literal),* $(,)?],)?
        copy: [$($copy:literal),* $(,)?],
        leave: [$($leave:literal),* $(,)?],
        syscall: [$($syscall:literal),* $(,)?] $(,)?
    ) => {
        core::arch::global_asm!(
            ".pushsection .tbss.probe_host_linux,\"awT\",%nobits",
            concat!(".balign ", $word),
            ".hidden probe_host_linux_thread",
            ".globl probe_host_linux_thread",
            ".type probe_host_linux_thread, %object",
            concat!("probe_host_linux_thread: .zero ", $word),
            concat!(".size probe_host_linux_thread, ", $word),
            ".popsection",
            ".pushsection .text.probe_host_linux,\"ax\",%progbits",
            ".balign 4",
            ".irp name, copy, copy_begin, copy_end, syscall",
            ".hidden probe_host_linux_\\name",
            ".globl probe_host_linux_\\name",
            ".endr",
            ".type probe_host_linux_copy, %function",
            $crate::arch::assembly::function!("probe_host_linux_copy"),
            $($($enter,)*)?
            "probe_host_linux_copy_begin:",
            $($copy,)*
            "probe_host_linux_copy_end:",
            $($leave,)*
            ".size probe_host_linux_copy, . - probe_host_linux_copy_code",
            ".type probe_host_linux_syscall, %function",
            $crate::arch::assembly::function!("probe_host_linux_syscall"),
            $($syscall,)*
            ".size probe_host_linux_syscall, . - probe_host_linux_syscall_code",
            ".popsection",
        );
    };
}
pub(super) use shared_assembly;

unsafe extern "C" {
    /// Copies until it is done or faults, and returns how many bytes are left. A fault goes on at
    /// `probe_host_linux_copy_end`.
    fn probe_host_linux_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    /// The kernel's answer to a system call with six arguments, below 0 an errno. A function, so that the
    /// guard does not find it in a static program.
    fn probe_host_linux_syscall(number: usize, arguments: *const usize) -> isize;
    /// The first instruction of the copy that may fault, or one before it.
    static probe_host_linux_copy_begin: u8;
    static probe_host_linux_copy_end: u8;
}

/// Copies until it is done or faults; returns how many bytes were not copied.
///
/// # Safety
/// The caller owns the memory at `to`. `from` and `to` may be any addresses as long as this crate's SIGSEGV
/// and SIGBUS handlers are in place.
pub(crate) unsafe fn nofault_copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; faults end the copy through `nofault_fixup`.
    unsafe { probe_host_linux_copy(to, from, len) }
}

/// Where to resume after a fault at `pc`, if `pc` is in [`nofault_copy`]. The counting register holds the
/// bytes that are left there.
pub(crate) fn nofault_fixup(pc: usize) -> Option<usize> {
    let start = (&raw const probe_host_linux_copy_begin) as usize;
    let end = (&raw const probe_host_linux_copy_end) as usize;
    (start..end).contains(&pc).then_some(end)
}

/// Makes a system call without libc, whose functions may be probed; returns the kernel's answer, below 0 an
/// errno.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn syscall(number: libc::c_long, arguments: &[usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { probe_host_linux_syscall(number as usize, arguments.as_ptr()) }
}
