//! `probe report --html` in a browser: it is drawn, and all that is in its data can be seen.
//!
//! Where Chromium is installed, as `cargo ci torture looks` sees to; there it has to be.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

mod common;

use common::{compiled, probe, scratch};
use std::path::Path;
use std::process::{Command, Output};

/// Chromium without a window; nothing where there is none.
fn browser(options: &[&str], page: &Path) -> Option<Output> {
    let profile = scratch("chromium");
    let mut command = Command::new("chromium");
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--virtual-time-budget=5000", "--window-size=1400,1800"]).args(options);
    command.arg(format!("--user-data-dir={}", profile.display())).arg(format!("file://{}", page.display()));
    let output = command.output();
    let _ = std::fs::remove_dir_all(&profile);
    assert!(output.is_ok() || std::env::var_os("PROBE_BROWSER").is_none(), "{output:?}");
    output.ok()
}

#[test]
fn a_browser_draws_the_page() {
    let program = compiled("nested", &["-O1", "-fno-optimize-sibling-calls", "-pthread"]);
    let (record, page) = (scratch("record"), scratch("page").with_extension("html"));
    let mut command = probe();
    command.args(["record", "-o"]).arg(&record);
    for definition in
        ["r main", "r outer n=$arg1:s32", "r inner n=$arg1:s32", "r leaf", "r deep", "p mark n=$arg1:s32"]
    {
        command.args(["-p", definition]);
    }
    assert!(command.arg("--").arg(&program).arg("50").output().expect("it runs").status.success());
    assert!(probe().args(["report", "--html"]).arg(&page).arg(&record).status().expect("it runs").success());
    let Some(drawn) = browser(&["--dump-dom"], &page) else { return };
    let document = String::from_utf8_lossy(&drawn.stdout).into_owned();
    assert!(drawn.status.success() && document.contains("data-drawn=\"yes\""), "{drawn:?}");
    let count = |what: &str| document.matches(what).count();
    // A row for each function, a line for each thread; of ways and calls those that are wide enough to be
    // seen, as main is, in which the others are.
    assert_eq!((count("<td class=\"name\""), count("class=\"thread\"")), (6, 2));
    for name in ["all", "main"] {
        assert!(document.contains(&format!("data-tip=\"{name}\n")), "{name}");
    }
    assert!(
        count("class=\"slice") > 0 && count("<canvas class=\"density\"") == 2 && count("class=\"count\"") > 0
    );
    // To be looked at: light and dark.
    for (name, options) in [("light", &[][..]), ("dark", &["--blink-settings=preferredColorScheme=0"][..])] {
        let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"));
        let _ = std::fs::remove_file(&picture);
        let shot = format!("--screenshot={}", picture.display());
        browser(&[&[&*shot], options].concat(), &page).expect("it was there before");
        let bytes = std::fs::read(&picture).expect("a picture");
        assert!(bytes.starts_with(b"\x89PNG") && bytes[16..24] == [0, 0, 5, 120, 0, 0, 7, 8], "1400 × 1800");
        assert!(bytes.len() > 40_000, "an empty picture has few bytes");
    }
    for file in [Path::new(&program), &record, &page] {
        let _ = std::fs::remove_file(file);
    }
}
