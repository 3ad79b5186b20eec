//! The admin API against its descriptions: the OpenAPI document and docs/http-api.md.

use std::collections::BTreeSet;

use evenkeel::service::admin::{KINDS, route_list};
use serde_json::{Value, json};

use crate::admin_world::{Answer, World, run};

const DOCS: &str = include_str!("../../docs/http-api.md");

/// A valid body or query for each route that needs one.
fn request(world: &World, method: &str, path: &str) -> Answer {
    match (method, path) {
        ("GET", "/v1/explain") => world.get("/v1/explain?id=a"),
        ("GET", path) => world.get(path),
        ("POST", "/v1/redrive") => world.post(path, r#"{"match": "*"}"#),
        ("POST", "/v1/drain") => world.post(path, "{}"),
        ("POST", path) => world.post(path, r#"{"ids": ["a", "full-b", "away-c"]}"#),
        other => panic!("no example of {other:?}"),
    }
}

fn document(world: &World) -> Value {
    let answer = world.get("/v1/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let world = World::open();
    let document = document(&world);
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let served = route_list().into_iter().map(|(method, path)| (method.to_string(), path.to_owned())).collect();
    assert_eq!(described, served);
    for (method, path) in &described {
        assert!(DOCS.contains(&format!("| `{method} {path}")), "docs/http-api.md lacks {method} {path}");
        let answer = request(&world, method, path);
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        let answers = &document["paths"][path][method.to_lowercase()]["responses"];
        assert!(answers[answer.status.to_string()].is_object(), "{method} {path}: {} is not described", answer.status);
        let kind = answer.header("content-type").unwrap().split(';').next().unwrap();
        assert!(answers[answer.status.to_string()]["content"][kind].is_object(), "{method} {path}: {kind}");
    }
}

/// No answer holds a field that the document does not name, or lacks one that it requires.
#[test]
fn answers_are_as_described() {
    let world = World::open();
    world.script.journal.lock().unwrap().extend([run(1, "a"), run(2, "b")]);
    let mut document = document(&world);
    close(&mut document["components"]["schemas"]);
    let check = |answer: &Answer, method: &str, path: &str| {
        let operation = &document["paths"][path][method.to_lowercase()]["responses"];
        let described = operation.get(answer.status.to_string()).unwrap_or(&operation["default"]);
        let kind = answer.header("content-type").unwrap();
        let schema = &described["content"][kind]["schema"];
        assert!(schema.is_object(), "{method} {path} {} {kind}", answer.status);
        let whole = json!({ "components": document["components"], "allOf": [schema] });
        let validator = jsonschema::validator_for(&whole).unwrap();
        let faults: Vec<String> =
            validator.iter_errors(&answer.json()).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(faults.is_empty(), "{method} {path}: {faults:#?}\n{}", answer.body);
    };
    for (method, path) in
        route_list().into_iter().filter(|(_, path)| path.starts_with("/v1/") && !path.ends_with("json"))
    {
        check(&request(&world, method.as_str(), path), method.as_str(), path);
    }
    for (query, ids) in [
        ("", r#"["full-1"]"#),
        ("", r#"["a", "present", "full-1", "away-1", "\u0000"]"#),
        ("?durable=true", r#"["a", "lost-b"]"#),
        ("?wait=done", r#"["a", "fails-b"]"#),
    ] {
        check(&world.post(&format!("/v1/trigger{query}"), &format!("{{\"ids\": {ids}}}")), "POST", "/v1/trigger");
    }
    world.script.health.lock().unwrap().live = false;
    check(&world.get("/livez"), "GET", "/livez");
}

/// Refuses fields that are not named.
fn close(schemas: &mut Value) {
    match schemas {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("type") == Some(&json!("object")) {
                fields.insert("additionalProperties".into(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[test]
fn requests_are_as_described() {
    let world = World::open();
    let document = document(&world);
    let accepts = |name: &str, body: &Value| {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}"), "components": document["components"] });
        jsonschema::validator_for(&schema).unwrap().is_valid(body)
    };
    for (name, path, body) in [
        ("Ids", "/v1/trigger", json!({"ids": ["a"]})),
        ("Ids", "/v1/trigger", json!({"ids": []})),
        ("Ids", "/v1/cancel", json!({"ids": "a"})),
        ("Redrive", "/v1/redrive", json!({"match": "*"})),
        ("Redrive", "/v1/redrive", json!({"ids": ["a"]})),
        ("Redrive", "/v1/redrive", json!({"ids": ["a"], "match": "*"})),
        ("Redrive", "/v1/redrive", json!({"match": ""})),
        ("Nothing", "/v1/drain", json!({})),
    ] {
        let accepted = world.post(path, &body.to_string()).status < 300;
        assert_eq!(accepts(name, &body), accepted, "{path} {body}");
    }
}

#[test]
fn every_kind_of_problem_is_explained() {
    let listed: BTreeSet<(String, u16)> = DOCS
        .lines()
        .skip_while(|line| !line.starts_with("| kind "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`').to_owned(), cells[2].parse().unwrap())
        })
        .collect();
    assert_eq!(listed, KINDS.iter().map(|kind| (kind.name.to_owned(), kind.status)).collect());
}
