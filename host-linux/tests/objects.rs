//! Shared objects that come and go, the listing, and W^X.

mod common;

use common::{alone, count, counter};
use probe_core::Place;
use probe_core::files::Viewer;
use probe_host_linux::{Kprobe, Kretprobe, TextAccess, objects_changed, probes};
use std::ffi::CStr;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A library that no Rust program needs.
const LIBRARY: &CStr = c"libm.so.6";

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn obj_work(x: usize) -> usize {
    black_box(x) + 9
}

struct Loaded(*mut libc::c_void);

impl Loaded {
    fn new() -> Option<Self> {
        // SAFETY: a C string; the library's constructors do nothing that matters.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        (!handle.is_null()).then_some(Self(handle))
    }

    fn cbrt(&self, x: f64) -> f64 {
        // SAFETY: a live handle and a C string.
        let function = unsafe { libc::dlsym(self.0, c"cbrt".as_ptr()) };
        // SAFETY: the C library's function has this type.
        let function =
            unsafe { core::mem::transmute::<*mut libc::c_void, extern "C" fn(f64) -> f64>(function) };
        function(x)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: a live handle, closed once.
        unsafe { libc::dlclose(self.0) };
    }
}

fn listing() -> String {
    let mut text = String::new();
    probes().files().list(&mut text, Viewer::Privileged).unwrap();
    text
}

#[test]
fn ctl_5_probes_of_an_unloaded_object_are_gone() {
    let _alone = alone();
    probes();
    let Some(library) = Loaded::new() else {
        panic_unless_static();
        return;
    };
    let (hits, returns) = (counter(), counter());
    let probe = probes()
        .register(Kprobe::at(Place::symbol("cbrt").in_module("libm.so.6")).pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    let ret = probes()
        .register(Kretprobe::at(Place::symbol("cbrt").in_module("libm.so.6")).exit(move |_, ()| {
            returns.fetch_add(1, Relaxed);
        }))
        .unwrap();
    assert!((library.cbrt(27.0) - 3.0).abs() < 1e-9);
    assert_eq!((count(hits), count(returns)), (1, 1));
    assert!(listing().contains("  libm.so.6 "), "{}", listing());
    drop(library);
    objects_changed();
    assert!(probe.is_gone() && ret.is_gone());
    assert!(listing().contains("[GONE]"), "{}", listing());
    assert_eq!(probe.enable().unwrap_err().errno().as_i32(), libc::EINVAL);
    drop((probe, ret));
    assert!(!listing().contains("cbrt"), "{}", listing());
    // And again: nothing of the first time is left in the text.
    let library = Loaded::new().unwrap();
    assert!((library.cbrt(8.0) - 2.0).abs() < 1e-9);
    let probe = probes()
        .register(Kprobe::at("cbrt").pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    assert!((library.cbrt(8.0) - 2.0).abs() < 1e-9);
    assert_eq!((count(hits), count(returns)), (2, 1));
    drop(probe);
    assert!((library.cbrt(8.0) - 2.0).abs() < 1e-9);
}

#[test]
fn ctl_5_a_handle_dropped_after_the_text_has_gone_writes_nothing() {
    let _alone = alone();
    probes();
    let Some(library) = Loaded::new() else { return };
    let probe = probes().register(Kprobe::at("cbrt").pre(|_| ())).unwrap();
    let at = probe.addr().as_usize();
    drop(library);
    // Somebody else's memory where the text was; nobody has told the core.
    let page = at & !0xfff;
    // SAFETY: the range was unmapped with the library.
    let got = unsafe {
        libc::mmap(
            page as *mut libc::c_void,
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(got as usize, page);
    // SAFETY: just mapped.
    unsafe { (at as *mut u8).write(0x5a) };
    drop(probe);
    // SAFETY: just mapped.
    assert_eq!(unsafe { (at as *const u8).read() }, 0x5a);
    // SAFETY: this test's own.
    unsafe { libc::munmap(got, 4096) };
}

#[test]
fn safe_1_no_page_is_ever_writable_and_executable() {
    let _alone = alone();
    let is_native = probes().host().text_access() == TextAccess::Alias;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut bad = Vec::new();
            let mut looks = 0;
            while !stop.load(Relaxed) {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                bad.extend(maps.lines().filter(|line| line.contains("wx")).map(str::to_owned));
                looks += 1;
            }
            (bad, looks)
        });
        for i in 0..300 {
            let k = probes().register(Kprobe::at("obj_work").pre(|_| ()).post(|_| ())).unwrap();
            let r = probes().register(Kretprobe::at("obj_work").exit(|_, ()| ())).unwrap();
            assert_eq!(obj_work(i), i + 9);
            drop((k, r));
        }
        stop.store(true, Relaxed);
        let (bad, looks) = watcher.join().unwrap();
        assert!(looks > 1);
        assert!(!is_native || bad.is_empty(), "{bad:?}");
    });
}

#[test]
fn ctl_3_the_listing_names_place_and_module() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at(Place::symbol("obj_work").offset(0)).disabled()).unwrap();
    let line = listing().lines().find(|line| line.contains("obj_work")).unwrap().to_owned();
    let width = 2 * size_of::<usize>();
    let offset = if cfg!(all(target_arch = "powerpc64", not(target_abi = "elfv1"))) { 8 } else { 0 };
    let wanted = format!("{:0width$x}  k  obj_work+{offset:#x}    [DISABLED]", probe.addr().as_usize());
    assert_eq!(line, wanted);
    drop(probe);
}

#[test]
fn many_places_of_libc_are_registered_quickly_and_removed() {
    use probe_core::host::Host;
    let _alone = alone();
    let mut places = Vec::new();
    probes().host().for_each_symbol(&mut |symbol, object| {
        if object.starts_with("libc.so") && symbol.len_bytes > 0 {
            places.push(symbol.start);
        }
    });
    if places.is_empty() {
        panic_unless_static();
        return;
    }
    places.sort_unstable();
    places.dedup();
    places.retain(|&at| probes().explain(&Place::addr(at)).is_ok());
    assert!(places.len() > 1000, "{}", places.len());
    let before: Vec<[u8; 16]> = places.iter().map(|&at| read(at)).collect();
    let start = std::time::Instant::now();
    // Disabled: nobody shall hit them from other threads meanwhile.
    let all =
        probes().register_all(places.iter().map(|&at| Kprobe::at(Place::addr(at)).pre(|_| ()))).unwrap();
    let registered = start.elapsed();
    probes().unregister_all(all).unwrap();
    let removed = start.elapsed() - registered;
    let after: Vec<[u8; 16]> = places.iter().map(|&at| read(at)).collect();
    assert!(before == after, "text has changed");
    println!("{} places: registered in {registered:?}, removed in {removed:?}", places.len());
    fn read(at: probe_core::CodeAddr) -> [u8; 16] {
        let mut bytes = [0; 16];
        probes().host().read_text(at, &mut bytes);
        bytes
    }
}

/// A static program can load nothing; any other must.
fn panic_unless_static() {
    #[cfg(not(target_feature = "crt-static"))]
    panic!("a library that must be there is not");
}
