//! The manual pages in doc/ and the completions in completions/ follow from the command line. `PROBE_BLESS=1
//! cargo test -p probe-trace manual` (or `cargo ci generate`) writes them.
//!
//! On 64-bit machines only: the pages show a default that is another one elsewhere.

use super::args::Cli;
use super::pages;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::Path;

/// Name and content of each file.
fn files() -> Vec<(String, Vec<u8>)> {
    let mut command = Cli::command();
    // The pages are the same on every terminal.
    command = command.term_width(100);
    command.build();
    let mut files = Vec::new();
    let page = |command: clap::Command| {
        let mut text = Vec::new();
        let name = command.get_name().to_owned();
        let title = name.to_uppercase();
        // Its grammar and examples have sections of their own here.
        let command = command.after_help(None::<&str>).after_long_help(None::<&str>);
        let man =
            Man::new(command).title(title).date("").source(concat!("probe ", env!("CARGO_PKG_VERSION")));
        let man = man.manual("User Commands");
        let head = [Man::render_title, Man::render_name_section, Man::render_synopsis_section];
        let body = [Man::render_description_section, Man::render_options_section];
        for render in head.into_iter().chain(body) {
            render(&man, &mut text).expect("memory takes everything");
        }
        if name == "probe" {
            man.render_subcommands_section(&mut text).expect("memory takes everything");
        }
        // A date that is empty has to be said, or what follows it takes its place.
        let mut text = String::from_utf8(text).expect("it is text").replacen(" 1  \"", " 1 \"\" \"", 1);
        pages::sections(&name).iter().for_each(|section| pages::render(&mut text, section));
        text.into_bytes()
    };
    for sub in command.get_subcommands() {
        // As long as the test lives.
        let name: &'static str = format!("probe-{}", sub.get_name()).leak();
        files.push((format!("doc/{name}.1"), page(sub.clone().name(name).display_name(name))));
    }
    files.push(("doc/probe.1".to_owned(), page(command.clone())));
    for (shell, name) in [(Shell::Bash, "probe.bash"), (Shell::Zsh, "_probe"), (Shell::Fish, "probe.fish")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "probe", &mut text);
        files.push((format!("completions/{name}"), text));
    }
    files
}

#[test]
fn the_committed_manual_and_completions_are_what_the_command_line_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, wanted) in files() {
        let file = folder.join(&name);
        if std::env::var_os("PROBE_BLESS").is_some() {
            std::fs::create_dir_all(file.parent().expect("it is in a folder")).expect("it can be made");
            std::fs::write(&file, &wanted).expect("the file can be written");
        }
        let found = std::fs::read(&file).unwrap_or_default();
        assert!(found == wanted, "{name} is not what the command line says; run: cargo ci generate");
    }
}
