//! How control arrives at a place of a loaded object (REG_19); the rules are in
//! [`probe_elf_symbols::arrival`].

use super::copied::Copied;
use super::objects::{Object, Role};
use crate::memory::read_some;
use probe_core::host::Arrival;
use probe_elf_symbols::arrival::{Head, Machine, judge};
use probe_elf_symbols::building;

/// How control arrives at `at`, which lies in `object`: as its unwind tables say, and its ELF header.
pub(crate) fn of(object: &Object, at: usize) -> Arrival {
    let Some((machine, entry)) = elf_header(object) else { return Arrival::Unknown };
    // Linkers give libraries an entry point, too, where nothing starts.
    let is_started = matches!(object.role, Role::Program | Role::Loader);
    let symbol = object.index().covering(at.wrapping_sub(object.bias));
    let start = symbol.map_or(at, |symbol| object.bias.wrapping_add(symbol.addr));
    let name = symbol.map(|symbol| object.index().name(symbol));
    judge(is_started && entry == Some(start), name, || {
        let unwind = object.unwind.get().unwrap_or_else(|| {
            let _building = building::begin();
            object.unwind.get_or_init(|| {
                Copied::new(machine, object.eh_frame_header?, |start| object.segment_end(start))
            })
        });
        unwind.as_ref().map_or(Arrival::Unknown, |unwind| unwind.arrival(at))
    })
}

/// The machine and the entry point that the header of a loaded object names.
fn elf_header(object: &Object) -> Option<(Machine, Option<usize>)> {
    let mut bytes = [0; Head::LEN];
    let start = object.segments.first()?.start;
    if read_some(start, &mut bytes) < bytes.len() {
        return None;
    }
    let Head { machine, entry } = Head::parse(&bytes)?;
    let mut entry = entry.map(|entry| object.bias.wrapping_add(entry));
    // On ppc64 ELFv1 it is the address of a descriptor.
    if let Some(at) = entry.filter(|&at| object.holds(at) && !object.holds_text(at)) {
        let mut code = [0; size_of::<usize>()];
        entry = (read_some(at, &mut code) == code.len()).then(|| usize::from_ne_bytes(code));
    }
    Some((machine, entry))
}

#[cfg(test)]
mod tests {
    use super::super::objects;
    use super::*;

    #[test]
    fn the_program_starts_where_no_call_comes_and_this_test_is_called() {
        let objects = objects::snapshot();
        let program = &objects[0];
        let (_, entry) = elf_header(program).unwrap();
        assert_eq!(of(program, entry.unwrap()), Arrival::START);
        let here = the_program_starts_where_no_call_comes_and_this_test_is_called as *const () as usize;
        let here = if cfg!(target_abi = "elfv1") {
            // SAFETY: on that ABI a function pointer points to its descriptor.
            unsafe { (here as *const usize).read() }
        } else {
            here
        };
        // arm's tables do not say how a function is come to.
        let expected = if cfg!(target_arch = "arm") { Arrival::Unknown } else { Arrival::Called };
        assert_eq!(of(program, here), expected);
    }
}
