//! Enabling, the switch, the listing: CTL_1 … CTL_6.

use crate::check::{Outcome, equal, ok, refused, that};
use crate::reg::text;
use crate::targets::call;
use crate::{Case, Suite};
use alloc::string::String;
use alloc::vec::Vec;
use probe_core::files::Viewer;
use probe_core::host::Host;
use probe_core::{Kprobe, Kretprobe, Place, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        ctl_1_enable_and_disable_are_idempotent,
        ctl_2_the_switch_disarms_and_rearms_everything,
        ctl_2_enabled_takes_what_the_kernel_takes,
        ctl_3_list_has_the_kernels_format,
        ctl_4_the_unprivileged_see_no_addresses,
    ]
}

/// The file `list`.
fn list<H: Host>(probes: &Probes<H>, viewer: Viewer) -> String {
    let mut listing = String::new();
    let _ = probes.files().list(&mut listing, viewer);
    listing
}

fn ctl_1_enable_and_disable_are_idempotent<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let probe = ok!(probes.register(Kprobe::at("conformance_add")));
    for _ in 0..3 {
        ok!(probe.disable());
    }
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(probe.counters().hits, 0);
    for _ in 0..3 {
        ok!(probe.enable());
    }
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(probe.counters().hits, 1);
    Ok(())
}

fn ctl_2_the_switch_disarms_and_rearms_everything<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_add");
    let probe = ok!(probes.register(Kprobe::at("conformance_add")));
    let disabled = ok!(probes.register(Kprobe::at("conformance_sub").disabled()));
    ok!(probes.files().write_enabled("0\n"));
    equal!(text(probes, "conformance_add"), before);
    let late = ok!(probes.register(Kprobe::at("conformance_mul")));
    equal!((call!(conformance_add(1, 2)), call!(conformance_mul(2, 3))), (3, 6));
    equal!((probe.counters().hits, late.counters().hits), (0, 0));
    ok!(probes.files().write_enabled("1"));
    equal!(
        (call!(conformance_add(1, 2)), call!(conformance_mul(2, 3)), call!(conformance_sub(3, 2))),
        (3, 6, 1)
    );
    equal!((probe.counters().hits, late.counters().hits, disabled.counters().hits), (1, 1, 0));
    Ok(())
}

fn ctl_2_enabled_takes_what_the_kernel_takes<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let reads = |probes: &Probes<S::Host>| {
        let mut text = String::new();
        let _ = probes.files().enabled(&mut text);
        text
    };
    for (written, read) in [
        ("0", "0\n"),
        ("1", "1\n"),
        ("n", "0\n"),
        ("y\n", "1\n"),
        ("N", "0\n"),
        ("Y", "1\n"),
        ("f", "0\n"),
        ("t", "1\n"),
        ("F\n", "0\n"),
        ("T", "1\n"),
        ("off", "0\n"),
        ("on", "1\n"),
        ("OFF\n", "0\n"),
        ("On", "1\n"),
    ] {
        ok!(probes.files().write_enabled(written));
        equal!(reads(probes), read, "after writing {written:?}");
    }
    for bad in ["", "\n", "x", "2", "o", "ox"] {
        refused!(probes.files().write_enabled(bad), EINVAL);
        equal!(reads(probes), "1\n");
    }
    Ok(())
}

fn ctl_3_list_has_the_kernels_format<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    extern "C" fn handler(_: usize, _: usize) -> usize {
        0
    }
    let kprobe = ok!(probes.register(Kprobe::at(Place::symbol("conformance_add")).disabled()));
    let jprobe = ok!(probes.register(crate::jmp::two("conformance_sub", handler)));
    let kretprobe = ok!(probes.register(Kretprobe::at("conformance_mul")));
    let listing = list(probes, Viewer::Privileged);
    let digits = 2 * size_of::<usize>();
    for (probe, kind, name, marker) in [
        (&kprobe, 'k', "conformance_add", "[DISABLED]"),
        (&jprobe, 'j', "conformance_sub", ""),
        (&kretprobe, 'r', "conformance_mul", ""),
    ] {
        let address = probe.addr().as_usize();
        let (start, _) = crate::reg::extent(probes, name);
        let offset = address - start.as_usize();
        let head = alloc::format!("{address:0digits$x}  {kind}  {name}+{offset:#x}  ");
        let line = listing.lines().find(|line| line.starts_with(&head));
        let Some(line) = line else {
            that!(false, "no line starts with {head:?} in\n{listing}");
            continue;
        };
        let rest = &line[head.len()..];
        // Where the host optimises probes.
        let rest = rest.strip_suffix("[OPTIMIZED]").unwrap_or(rest);
        that!(rest.ends_with(marker), "{line:?} does not end with {marker:?}");
        let module = &rest[..rest.len() - marker.len()];
        that!(module.ends_with(' '), "no space before the markers in {line:?}");
    }
    equal!(listing.lines().count(), 3);
    Ok(())
}

fn ctl_4_the_unprivileged_see_no_addresses<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let _probe = ok!(probes.register(Kprobe::at("conformance_add")));
    let zeros = "0".repeat(2 * size_of::<usize>());
    let listing = list(probes, Viewer::Unprivileged);
    that!(listing.starts_with(&zeros), "an address is shown: {listing}");
    let mut blacklist = String::new();
    let _ = probes.files().blacklist(&mut blacklist, Viewer::Unprivileged);
    for line in blacklist.lines() {
        let shown = line.chars().take_while(|&c| c != '\t').any(|c| c.is_ascii_hexdigit() && c != '0');
        that!(!shown, "an address is shown: {line}");
    }
    Ok(())
}
