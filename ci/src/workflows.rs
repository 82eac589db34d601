//! What `actionlint` would say about the generated descriptions for hosted engines, as far as it matters
//! here: they parse, jobs and steps have what they need, and every expression names something that there is.
//! Tests only.

use std::collections::BTreeSet;

use yaml_rust2::{Yaml, YamlLoader};

use crate::cli::Format;
use crate::{generate, job};

fn parse(format: Format) -> Yaml {
    let text = generate::matrix(format);
    let mut documents =
        YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{format:?}: {error}\n{text}"));
    assert_eq!(documents.len(), 1, "{format:?}");
    documents.remove(0)
}

fn keys(yaml: &Yaml) -> Vec<&str> {
    yaml.as_hash().into_iter().flatten().filter_map(|(key, _)| key.as_str()).collect()
}

fn list(yaml: &Yaml) -> &[Yaml] {
    yaml.as_vec().map(Vec::as_slice).unwrap_or_default()
}

/// Every text in a document.
fn texts<'a>(yaml: &'a Yaml, out: &mut Vec<&'a str>) {
    match yaml {
        Yaml::String(text) => out.push(text),
        Yaml::Array(items) => items.iter().for_each(|item| texts(item, out)),
        Yaml::Hash(map) => map.iter().for_each(|(_, value)| texts(value, out)),
        _ => {}
    }
}

/// The expressions in `${{ }}` of a text.
fn expressions(text: &str) -> Vec<&str> {
    let parts = text.split("${{").skip(1);
    parts.map(|part| part.split_once("}}").unwrap_or_else(|| panic!("not closed: {text}")).0.trim()).collect()
}

fn hosted_names() -> BTreeSet<&'static str> {
    job::all().into_iter().filter(|job| job.is_hosted()).map(|job| job.name).collect()
}

#[test]
fn github_jobs_and_steps_have_what_they_need() {
    let workflow = parse(Format::Github);
    for key in ["name", "on", "permissions", "jobs"] {
        assert!(!workflow[key].is_badvalue(), "no {key}");
    }
    let all = keys(&workflow["jobs"]);
    for &name in &all {
        let job = &workflow["jobs"][name];
        assert!(job["runs-on"].as_str().is_some_and(|engine| engine.starts_with("ubuntu-")), "{name}");
        for need in list(&job["needs"]) {
            assert!(all.contains(&need.as_str().unwrap_or_default()), "{name} needs {need:?}");
        }
        assert!(!list(&job["steps"]).is_empty(), "{name} does nothing");
        for step in list(&job["steps"]) {
            let (uses, run) = (step["uses"].as_str(), step["run"].as_str());
            assert!(
                uses.is_some() != run.is_some(),
                "{name}: a step either uses or runs something: {step:?}"
            );
            if let Some(action) = uses {
                let version = action.split_once('@').map(|(_, version)| version);
                assert!(version.is_some_and(|version| version.starts_with('v')), "{action} is not pinned");
            }
        }
    }
}

#[test]
fn github_expressions_name_what_there_is() {
    let workflow = parse(Format::Github);
    let job = &workflow["jobs"]["job"];
    let mut known: BTreeSet<String> =
        ["github.ref", "github.event_name", "github.sha"].iter().map(|&name| name.to_owned()).collect();
    for row in list(&job["strategy"]["matrix"]["include"]) {
        let names = keys(row);
        assert_eq!(names, ["job", "minutes"]);
        known.extend(names.iter().map(|name| format!("matrix.{name}")));
    }
    for name in keys(&workflow["jobs"]) {
        known.insert(format!("needs.{name}.result"));
    }
    let mut all = Vec::new();
    texts(&workflow, &mut all);
    let mut seen = 0;
    for expression in all.into_iter().flat_map(expressions) {
        seen += 1;
        let is_path = |word: &&str| word.contains('.') && !word.starts_with('\'');
        for word in expression.split([' ', '(', ')', ',']).filter(is_path) {
            assert!(known.contains(word) || word.ends_with('\''), "{word} in {expression}");
        }
    }
    assert!(seen > 8, "the expressions were not found");
}

#[test]
fn github_has_a_row_for_each_hosted_job_and_one_check_for_all() {
    let workflow = parse(Format::Github);
    let rows = list(&workflow["jobs"]["job"]["strategy"]["matrix"]["include"]);
    let names: BTreeSet<_> = rows.iter().filter_map(|row| row["job"].as_str()).collect();
    assert_eq!(names, hosted_names());
    assert!(
        rows.iter().all(|row| row["minutes"].as_i64().is_some_and(|minutes| (1..=360).contains(&minutes)))
    );
    assert_eq!(workflow["jobs"]["all"]["needs"][0].as_str(), Some("job"));
    assert_eq!(workflow["jobs"]["all"]["if"].as_str(), Some("always()"));
}

#[test]
fn gitlab_has_a_job_for_each_hosted_job() {
    let description = parse(Format::Gitlab);
    let others = ["image", "stages", "variables", ".job"];
    let names: BTreeSet<_> = keys(&description).into_iter().filter(|key| !others.contains(key)).collect();
    assert_eq!(names, hosted_names());
    let stage = description[".job"]["stage"].as_str();
    assert!(list(&description["stages"]).iter().any(|known| known.as_str() == stage));
    for name in names {
        assert_eq!(description[name]["extends"].as_str(), Some(".job"), "{name}");
        assert!(
            description[name]["timeout"].as_str().is_some_and(|limit| limit.ends_with(" minutes")),
            "{name}"
        );
    }
}

/// What an engine runs is what anybody can run here.
#[test]
fn every_hosted_job_can_be_run_by_its_name() {
    for name in hosted_names() {
        assert!(job::by_name(name).is_ok(), "{name}");
    }
    let all = generate::matrix(Format::Github);
    assert!(all.contains("cargo ci job ${{ matrix.job }}"), "{all}");
}
