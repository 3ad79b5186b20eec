//! Who may ask the admin API (reliability: Admin/API): tokens, hosts, origins, addresses; and that no secret shows.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use evenkeel::service::admin::{AdminError, AdminOptions, Server, route_list};

use crate::admin_world::World;

const TOKEN: &str = "canary-token-5f2c9a7e";
const NEXT_TOKEN: &str = "canary-token-0b1d3e5f";

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn guarded(dir: &Path) -> World {
    let path = dir.join("token");
    std::fs::write(&path, TOKEN).unwrap();
    World::with(AdminOptions::new(loopback(), Some(path)))
}

/// Every route's method and a path that it answers.
fn all_routes() -> impl Iterator<Item = (String, &'static str)> {
    route_list().into_iter().map(|(method, path)| (method.to_string(), path))
}

#[test]
fn without_a_token_nothing_but_probes_and_metrics_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let world = guarded(dir.path());
    let json = "Content-Type: application/json";
    for (method, path) in all_routes().chain([("GET".into(), "/v1/nothing")]) {
        // The page asks for the token itself; `admin_page` says what it tells without one.
        if path == "/" {
            continue;
        }
        let open = ["/livez", "/readyz", "/metrics"].contains(&path);
        for header in [json, "Authorization: Bearer canary-token-5f2c9a7f", "Authorization: Basic Y2FuYXJ5"] {
            let answer = world.ask(&method, path, &[json, header], "{}");
            match open {
                true => assert_eq!(answer.status, 200, "{method} {path}"),
                false => {
                    answer.is_problem(401, "token-needed", "Authorization: Bearer");
                    assert_eq!(answer.header("www-authenticate"), Some("bearer realm=\"evenkeel\""));
                }
            }
        }
    }
    let authorization = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(world.ask("GET", "/v1/status", &[&authorization], "").status, 200);
    assert_eq!(world.ask("POST", "/v1/drain", &[json, &authorization], "{}").status, 202);
    assert!(world.script.calls() == ["status"], "{:?}", world.script.calls());
}

#[test]
fn a_rotated_token_counts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let world = guarded(dir.path());
    let status = |token: &str| world.ask("GET", "/v1/status", &[&format!("Authorization: Bearer {token}")], "").status;
    assert_eq!((status(TOKEN), status(NEXT_TOKEN)), (200, 401));
    let replace = |content: &str| {
        std::fs::write(dir.path().join("next"), content).unwrap();
        std::fs::rename(dir.path().join("next"), dir.path().join("token")).unwrap();
    };
    replace(&format!("{TOKEN}\n{NEXT_TOKEN}\n"));
    assert_eq!((status(TOKEN), status(NEXT_TOKEN)), (200, 200));
    replace(NEXT_TOKEN);
    assert_eq!((status(TOKEN), status(NEXT_TOKEN)), (401, 200));
    replace("");
    let authorization = format!("Authorization: Bearer {NEXT_TOKEN}");
    world.ask("GET", "/v1/status", &[&authorization], "").is_problem(503, "token-file", "its log says why");
    assert_eq!(world.get("/livez").status, 200, "probes go on");
}

#[test]
fn probes_without_a_token_hear_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let world = guarded(dir.path());
    {
        let mut health = world.script.health.lock().unwrap();
        (health.live, health.ready) = (false, false);
        health.problems = vec!["id customer-4711 blocks a thread".into()];
    }
    for path in ["/livez", "/readyz"] {
        let answer = world.get(path);
        assert!(answer.status == 503 && !answer.body.contains("4711"), "{answer:?}");
        let answer = world.ask("GET", path, &[&format!("Authorization: Bearer {TOKEN}")], "");
        assert!(answer.status == 503 && answer.body.contains("4711"), "{answer:?}");
    }
}

#[test]
fn b87_no_answer_shows_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let world = guarded(dir.path());
    let authorization = format!("Authorization: Bearer {TOKEN}");
    for (method, path) in all_routes() {
        for body in ["", "{}", "[1", r#"{"ids": ["a"]}"#] {
            let answer = world.ask(&method, path, &["Content-Type: application/json", &authorization], body);
            assert!(!answer.body.contains("canary") && !answer.head.contains("canary"), "{answer:?}");
        }
    }
    let options = AdminOptions::new(loopback(), Some(dir.path().join("token")));
    assert!(!format!("{options:?} {:?}", Server::bind(options.clone()).unwrap()).contains("canary"));
}

#[test]
fn a_foreign_host_is_refused_on_loopback() {
    let world = World::open();
    let ask = |line: &str, headers: &str| {
        world.raw(format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes())
    };
    for host in ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"] {
        ask("GET /v1/status", &format!("Host: {host}\r\n")).is_problem(403, "foreign-origin", "localhost");
        ask("GET /livez", &format!("Host: {host}\r\n")).is_problem(403, "foreign-origin", "localhost");
        // The whole address in the request line counts instead of the header.
        ask(&format!("GET http://{host}/v1/status"), "Host: localhost\r\n").is_problem(403, "foreign-origin", "");
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:7070", "127.1.2.3", "[::1]:7070"] {
        assert_eq!(ask("GET /v1/status", &format!("Host: {host}\r\n")).status, 200, "{host}");
        assert_eq!(ask(&format!("GET http://{host}/v1/status"), &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for headers in ["", "Host: localhost\r\nHost: localhost\r\n", "Host: a b\r\n", "Host: \r\n", "Host: \u{e9}\r\n"] {
        ask("GET /v1/status", headers).is_problem(400, "invalid-request", "Host");
    }
    // Simple probes of old speak HTTP/1.0 without a host; browsers do not.
    assert_eq!(world.raw(b"GET /livez HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn a_web_page_cannot_ask() {
    let world = World::open();
    let own = format!("Origin: http://{}", world.address);
    let json = "Content-Type: application/json";
    for (header, status) in [
        ("Origin: http://evil.example", 403),
        ("Origin: https://localhost:1", 403),
        ("Origin: null", 403),
        ("Origin: file://", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        ("Sec-Fetch-Site: none", 202),
        ("Sec-Fetch-Site: same-origin", 202),
        (own.as_str(), 202),
    ] {
        let answer = world.ask("POST", "/v1/trigger", &[json, header], r#"{"ids": ["a"]}"#);
        assert_eq!(answer.status, status, "{header}");
        assert!(!answer.head.contains("access-control"), "no CORS: {answer:?}");
    }
    // What a form can send without asking, and what asking gets.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let answer = world.ask("POST", "/v1/drain", &[&format!("Content-Type: {kind}")], "{}");
        answer.is_problem(415, "media-type", "application/json");
    }
    let preflight = ["Origin: http://evil.example", "Access-Control-Request-Method: POST"];
    assert_eq!(world.ask("OPTIONS", "/v1/trigger", &preflight, "").status, 403);
    let answer = world.ask("OPTIONS", "/v1/trigger", &[], "");
    assert!(answer.status == 405 && !answer.head.contains("access-control"), "{answer:?}");
}

#[test]
fn nothing_is_changed_by_get() {
    let world = World::open();
    for (method, path) in all_routes().filter(|(method, _)| method != "GET") {
        for other in ["GET", "HEAD", "PUT", "DELETE", "PATCH"] {
            let answer = world.ask(other, path, &["Content-Type: application/json"], "");
            assert_eq!((answer.status, answer.header("allow")), (405, Some("post")), "{other} {path}, not {method}");
        }
    }
    assert!(world.script.calls().is_empty());
}

#[test]
fn answers_are_neither_kept_nor_guessed_at() {
    let world = World::open();
    for path in ["/v1/status", "/metrics", "/none"] {
        let answer = world.get(path);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7070"] {
        let options = AdminOptions::new(listen.parse().unwrap(), None);
        let error = Server::bind(options).unwrap_err();
        assert!(matches!(error, AdminError::Unguarded(_)), "{error}");
        assert!(error.to_string().contains("set admin.token_file"), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    let options = AdminOptions::new("0.0.0.0:0".parse().unwrap(), Some(path.clone()));
    let mut world = World::with(options);
    // Behind a name of one's own the Host header may be anything; the token is what counts.
    world.address.set_ip(Ipv4Addr::LOCALHOST.into());
    let request = format!(
        "GET /v1/status HTTP/1.1\r\nHost: evenkeel.example\r\nConnection: close\r\n\
         Authorization: Bearer {TOKEN}\r\n\r\n"
    );
    assert_eq!(world.raw(request.as_bytes()).status, 200);
    std::fs::write(&path, "short").unwrap();
    let error = Server::bind(AdminOptions::new(loopback(), Some(path))).unwrap_err();
    assert!(matches!(error, AdminError::Token(_)), "{error}");
}

#[test]
fn an_address_that_cannot_be_had_says_what_to_do() {
    let taken = TcpListener::bind(loopback()).unwrap();
    let error = Server::bind(AdminOptions::new(taken.local_addr().unwrap(), None)).unwrap_err();
    assert!(matches!(error, AdminError::InUse(_)), "{error}");
    assert!(error.to_string().contains("is in use") && error.to_string().contains("stop that process"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    // A documentation address: no machine has it.
    let error = Server::bind(AdminOptions::new("192.0.2.1:0".parse().unwrap(), Some(path))).unwrap_err();
    assert!(matches!(error, AdminError::Listen { .. }), "{error}");
    assert!(error.to_string().contains("an address of this machine"), "{error}");
}
