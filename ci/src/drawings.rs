//! The drawing of who needs whom, docs/drawings/crates.svg, made from the manifests: an arrow that points up
//! would show.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::metadata::{self, Package};

/// Width and height of a box, and the distances between them, in pixels.
const BOX: (usize, usize) = (176, 34);
const GAP: (usize, usize) = (24, 62);
const MARGIN: usize = 16;

/// The drawing.
///
/// # Errors
/// What cargo said.
pub(crate) fn crates(root: &Path) -> Result<String, String> {
    let packages: Vec<_> =
        metadata::packages(root)?.into_iter().filter(|package| package.name != "probe-ci").collect();
    Ok(draw(&packages))
}

fn draw(packages: &[Package]) -> String {
    let mut rows: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for package in packages {
        rows.entry(level(packages, &package.name)).or_default().push(&package.name);
    }
    let widest = rows.values().map(Vec::len).max().unwrap_or(0);
    let (width, height) =
        (MARGIN * 2 + widest * (BOX.0 + GAP.0) - GAP.0, MARGIN * 2 + rows.len() * (BOX.1 + GAP.1) - GAP.1);
    // What needs nothing stands at the bottom.
    let mut places = BTreeMap::new();
    for (&level, names) in &rows {
        let row = rows.len() - 1 - level;
        let indent = (widest - names.len()) * (BOX.0 + GAP.0) / 2;
        for (column, &name) in names.iter().enumerate() {
            places.insert(name, (MARGIN + indent + column * (BOX.0 + GAP.0), MARGIN + row * (BOX.1 + GAP.1)));
        }
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"14\" text-anchor=\"middle\">\n\
         <title>Which crate needs which</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\" fill=\"#567\"/></marker></defs>\n"
    );
    for package in packages {
        let (x, y) = places[package.name.as_str()];
        for (tx, ty) in direct(packages, package).filter_map(|need| places.get(need)) {
            let _ = writeln!(
                svg,
                "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{ty}\" stroke=\"#567\" marker-end=\"url(#tip)\"/>",
                x + BOX.0 / 2,
                y + BOX.1,
                tx + BOX.0 / 2,
            );
        }
    }
    for (name, (x, y)) in &places {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"#eef3f7\" stroke=\"#567\"/>\n\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            BOX.0,
            BOX.1,
            x + BOX.0 / 2,
            y + BOX.1 / 2 + 5,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// How many crates the longest way down from one leads through.
fn level(packages: &[Package], name: &str) -> usize {
    let package = packages.iter().find(|package| package.name == name);
    let needs = package.map(|package| package.needs.as_slice()).unwrap_or_default();
    let below = needs.iter().filter(|need| packages.iter().any(|other| other.name == **need));
    below.map(|need| 1 + level(packages, need)).max().unwrap_or(0)
}

/// What a crate needs, without what it also reaches through another one.
fn direct<'a>(packages: &'a [Package], package: &'a Package) -> impl Iterator<Item = &'a str> {
    let reaches = |from: &str, to: &str| from != to && reaches(packages, from, to);
    let ours = || package.needs.iter().filter(|need| packages.iter().any(|other| other.name == **need));
    let mut direct: Vec<_> =
        ours().filter(|need| !ours().any(|other| reaches(other, need))).map(String::as_str).collect();
    direct.sort_unstable();
    direct.dedup();
    direct.into_iter()
}

fn reaches(packages: &[Package], from: &str, to: &str) -> bool {
    let package = packages.iter().find(|package| package.name == from);
    package.is_some_and(|package| package.needs.iter().any(|need| need == to || reaches(packages, need, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, needs: &[&str]) -> Package {
        Package {
            manifest: std::path::PathBuf::new(),
            name: name.to_owned(),
            rust_version: String::new(),
            is_published: true,
            needs: needs.iter().map(|&need| need.to_owned()).collect(),
            benches: Vec::new(),
        }
    }

    #[test]
    fn arrows_go_to_the_nearest_and_levels_count_the_longest_way() {
        let all =
            [package("top", &["middle", "core", "clap"]), package("middle", &["core"]), package("core", &[])];
        assert_eq!(all.each_ref().map(|package| level(&all, &package.name)), [2, 1, 0]);
        assert_eq!(direct(&all, &all[0]).collect::<Vec<_>>(), ["middle"]);
        let svg = draw(&all);
        assert_eq!((svg.matches("<line").count(), svg.matches("<text").count()), (2, 3), "{svg}");
    }
}
