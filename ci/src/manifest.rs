//! Manifests of packages, read and changed as TOML: everything that is not changed stays as it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

/// A manifest's text as a document.
fn parsed(manifest: &str) -> Result<DocumentMut, String> {
    manifest.parse().map_err(|error: toml_edit::TomlError| error.to_string())
}

/// A manifest without the sections about tests, benchmarks and examples.
///
/// # Errors
/// It is not TOML.
pub(crate) fn without_tests(manifest: &str) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    for key in ["dev-dependencies", "test", "bench", "example"] {
        manifest.remove(key);
    }
    if let Some(targets) = manifest.get_mut("target").and_then(Item::as_table_mut) {
        for (_, target) in targets.iter_mut() {
            target.as_table_mut().and_then(|target| target.remove("dev-dependencies"));
        }
    }
    Ok(manifest.to_string())
}

/// A manifest that needs none of our packages but those that are named, and has no feature that does.
///
/// # Errors
/// It is not TOML.
pub(crate) fn without_others(manifest: &str, packages: &BTreeMap<String, PathBuf>) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    let is_kept = |name: &str| !name.starts_with("probe-") || packages.contains_key(name);
    let retain = |dependencies: Option<&mut Item>| {
        if let Some(dependencies) = dependencies.and_then(Item::as_table_mut) {
            dependencies.retain(|name, _| is_kept(name));
        }
    };
    retain(manifest.get_mut("dependencies"));
    if let Some(targets) = manifest.get_mut("target").and_then(Item::as_table_mut) {
        for (_, target) in targets.iter_mut() {
            retain(target.get_mut("dependencies"));
        }
        targets.retain(|_, target| {
            target.get("dependencies").and_then(Item::as_table).is_none_or(|found| !found.is_empty())
        });
    }
    if let Some(features) = manifest.get_mut("features").and_then(Item::as_table_mut) {
        features.retain(|_, needs| {
            let needs = needs.as_array().into_iter().flatten().filter_map(|need| need.as_str());
            needs.filter_map(|need| need.strip_prefix("dep:")).all(is_kept)
        });
    }
    Ok(manifest.to_string())
}

/// The workspace's manifest for some of its packages only, each with its folder.
///
/// # Errors
/// It is not TOML, or no workspace's.
pub(crate) fn workspace_of(manifest: &str, packages: &BTreeMap<String, PathBuf>) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    manifest.retain(|key, _| key == "workspace");
    let workspace = table(&mut manifest, &["workspace"])?;
    workspace.retain(|key, _| ["resolver", "members", "package", "dependencies", "lints"].contains(&key));
    let members: Array = packages.values().map(|folder| folder.display().to_string()).collect();
    workspace.insert("members", value(members));
    let dependencies = table(&mut manifest, &["workspace", "dependencies"])?;
    dependencies.retain(|name, dependency| dependency.get("path").is_none() || packages.contains_key(name));
    Ok(manifest.to_string())
}

/// `version` of `[workspace.package]`.
///
/// # Errors
/// There is none.
pub(crate) fn version(manifest: &str) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    let package = table(&mut manifest, &["workspace", "package"])?;
    let version = package.get("version").and_then(Item::as_str);
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml has no version".to_owned())
}

/// The manifest with another version, for the workspace and for what its crates ask of each other.
///
/// # Errors
/// It is not a workspace's manifest.
pub(crate) fn with_version(manifest: &str, to: &str) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    set(table(&mut manifest, &["workspace", "package"])?.get_mut("version"), to);
    for (_, dependency) in table(&mut manifest, &["workspace", "dependencies"])?.iter_mut() {
        if dependency.get("path").is_some() {
            set(dependency.get_mut("version"), to);
        }
    }
    Ok(manifest.to_string())
}

/// The manifest with these binaries, each a file in `folder` that has neither tests nor documentation.
///
/// # Errors
/// It is not TOML.
pub(crate) fn with_binaries(manifest: &str, folder: &str, names: &[String]) -> Result<String, String> {
    let mut manifest = parsed(manifest)?;
    let binary = |name: &String| {
        let mut binary = Table::new();
        binary.insert("name", value(name));
        binary.insert("path", value(format!("{folder}/{name}.rs")));
        for kind in ["test", "doc", "bench"] {
            binary.insert(kind, value(false));
        }
        binary
    };
    manifest.insert("bin", Item::ArrayOfTables(names.iter().map(binary).collect::<ArrayOfTables>()));
    Ok(manifest.to_string())
}

/// Sets a string's value, and keeps what stands around it.
fn set(item: Option<&mut Item>, to: &str) {
    if let Some(value) = item.and_then(Item::as_value_mut) {
        let decor = value.decor().clone();
        *value = to.into();
        *value.decor_mut() = decor;
    }
}

/// The table at a path.
fn table<'a>(manifest: &'a mut DocumentMut, path: &[&str]) -> Result<&'a mut Table, String> {
    let found =
        path.iter().try_fold(manifest.as_table_mut(), |table, key| table.get_mut(key)?.as_table_mut());
    found.ok_or_else(|| format!("the manifest has no [{}]", path.join(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_lose_what_only_tests_need() {
        let manifest = "[package]\nname = \"x\"\n\n[dev-dependencies]\nrstest = \"1\"\n\n[features]\na = []\n\n[[bench]]\nname = \"b\"\n\n\
                        [target.'cfg(unix)'.dev-dependencies]\nlibc = \"1\"\n";
        let left = without_tests(manifest).expect("it is TOML");
        assert!(left.starts_with("[package]\nname = \"x\"\n\n[features]\na = []\n"), "{left}");
        assert!(!["rstest", "bench", "libc"].iter().any(|word| left.contains(word)), "{left}");
        assert!(without_tests("[package\n").is_err());
    }

    #[test]
    fn manifests_lose_packages_that_are_not_vendored() {
        let manifest = "[features]\nall = [\"dep:probe-b\"]\nnone = []\n\n[dependencies]\nprobe-a = \"1\"\nother = \"1\"\n\
                        probe-b = { version = \"1\", optional = true }\n\n[target.'cfg(a)'.dependencies]\nprobe-a = \"1\"\n\n\
                        [target.'cfg(b)'.dependencies]\nprobe-b = \"1\"\n";
        let packages = BTreeMap::from([("probe-a".to_owned(), PathBuf::from("a"))]);
        let left = without_others(manifest, &packages).expect("it is TOML");
        assert!(!left.contains("probe-b") && !left.contains("cfg(b)") && !left.contains("all"), "{left}");
        assert_eq!((left.matches("probe-a").count(), left.matches("other").count()), (2, 1), "{left}");
        assert!(left.contains("none = []"), "{left}");
    }

    const WORKSPACE: &str = "[workspace]\nresolver = \"3\"\nmembers = [\"a\", \"b\"]\nexclude = [\"c\"]\n\n[workspace.package]\nversion = \"0.1.0\" # of all\n\
        edition = \"2024\"\n\n[workspace.dependencies]\na = { path = \"a\", version = \"0.1.0\" }\nb = { path = \"b\", version = \"0.1.0\" }\n\
        other = { version = \"0.1.0\" }\n\n[workspace.lints.rust]\nunsafe_op_in_unsafe_fn = \"deny\"\n\n[profile.dev]\nopt-level = 1\n";

    #[test]
    fn the_workspace_keeps_only_what_is_vendored() {
        let packages = BTreeMap::from([("a".to_owned(), PathBuf::from("folder-a"))]);
        let text = workspace_of(WORKSPACE, &packages).expect("it is a workspace's");
        for kept in ["members = [\"folder-a\"]", "resolver", "other", "edition", "unsafe_op_in_unsafe_fn"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        for dropped in ["b = {", "exclude", "profile"] {
            assert!(!text.contains(dropped), "{dropped}: {text}");
        }
    }

    #[test]
    fn versions_of_ours_change_and_no_others() {
        let found = with_version(WORKSPACE, "0.2.0").expect("it is a workspace's");
        assert_eq!(version(&found).as_deref(), Ok("0.2.0"));
        let lines: Vec<_> =
            WORKSPACE.lines().zip(found.lines()).filter(|(before, after)| before != after).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines.iter().all(|(before, after)| before.replace("0.1.0", "0.2.0") == **after), "{lines:?}");
        assert!(version("[package]\n").is_err());
    }

    #[test]
    fn binaries_take_the_place_of_those_that_were_there() {
        let manifest = "# Why.\n[package]\nname = \"x\"\n\n[[bin]]\nname = \"old\"\n";
        let found =
            with_binaries(manifest, "targets", &["a".to_owned(), "b".to_owned()]).expect("it is TOML");
        assert_eq!(
            found,
            "# Why.\n[package]\nname = \"x\"\n\n\
             [[bin]]\nname = \"a\"\npath = \"targets/a.rs\"\ntest = false\ndoc = false\nbench = false\n\n\
             [[bin]]\nname = \"b\"\npath = \"targets/b.rs\"\ntest = false\ndoc = false\nbench = false\n"
        );
    }
}
