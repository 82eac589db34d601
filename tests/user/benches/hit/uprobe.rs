//! The peer: the kernel's own uprobes and uretprobes, counted through `perf_event_open`.

use std::ffi::CString;
use std::fs;
use std::io;

/// An armed kernel uprobe in this process; disarmed when dropped.
pub(crate) struct Uprobe {
    fd: i32,
}

/// Which kernel probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At the instruction.
    Entry,
    /// At the function's return.
    Return,
}

impl Uprobe {
    /// Arms a uprobe on `function` of this executable.
    ///
    /// # Errors
    /// The machine has no uprobes, or does not let us use them.
    pub(crate) fn arm(function: usize, kind: Kind) -> io::Result<Self> {
        let pmu: u32 = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?
            .trim()
            .parse()
            .map_err(io::Error::other)?;
        let (path, offset) = file_offset(function)?;
        let path = CString::new(path)?;
        let mut attr = PerfEventAttr {
            kind: pmu,
            size: size_of::<PerfEventAttr>() as u32,
            config: u64::from(kind == Kind::Return),
            flags: 1, // disabled
            config1: path.as_ptr() as u64,
            config2: offset,
            ..PerfEventAttr::default()
        };
        // SAFETY: `attr` and the path it points to live across the call; the kernel copies both.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw mut attr, 0, -1, -1, 8) } as i32;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let probe = Self { fd };
        /// `PERF_EVENT_IOC_ENABLE`.
        const ENABLE: libc::c_ulong = 0x2400;
        // SAFETY: `fd` is the event just opened; this ioctl takes no pointer.
        let enabled = unsafe { libc::ioctl(probe.fd, ENABLE as _, 0) };
        if enabled == 0 { Ok(probe) } else { Err(io::Error::last_os_error()) }
    }

    /// How often it was hit.
    pub(crate) fn count(&self) -> u64 {
        let mut count = 0_u64;
        // SAFETY: the event's read format is one u64, and `count` has room for it.
        let read = unsafe { libc::read(self.fd, (&raw mut count).cast(), size_of::<u64>()) };
        assert_eq!(read, 8, "a perf event reads as one word");
        count
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and used nowhere else.
        unsafe { libc::close(self.fd) };
    }
}

/// The file that `address` is mapped from and its offset in that file, in bytes.
fn file_offset(address: usize) -> io::Result<(String, u64)> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(_), Some(offset)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let Some((start, end)) = range.split_once('-') else { continue };
        let parse = |hex: &str| u64::from_str_radix(hex, 16).map_err(io::Error::other);
        let (start, end, offset) = (parse(start)?, parse(end)?, parse(offset)?);
        if (start..end).contains(&(address as u64))
            && let Some(path) = fields.nth(2)
        {
            return Ok((path.to_owned(), address as u64 - start + offset));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the function is mapped from no file"))
}

/// The first 112 bytes of `struct perf_event_attr` (PERF_ATTR_SIZE_VER5), of which uprobes use a few.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}
