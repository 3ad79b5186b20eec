//! The status page as the server sends it: what is on it, what it may run, what it tells strangers, what it costs. How
//! it behaves in a browser is tested in `tests/live/page.rs`.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel::service::admin::AdminOptions;

use crate::admin_world::{Answer, World, run};

const TOKEN: &str = "canary-token-5f2c9a7e";

fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
    text.split_once(open).unwrap().1.split_once(close).unwrap().0
}

#[test]
fn the_first_view_is_readable_without_scripts() {
    let world = World::open();
    world.script.journal.lock().unwrap().extend([run(1, "orders-1"), run(2, "orders-2")]);
    let page = world.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    for part in [
        "<h1><bdi data-part=\"title\">dns</bdi></h1>",
        "leads 2 of 12 shards",
        "broker kafka:9092 does not answer",
        "<dt>pending</dt><dd>10</dd>",
        "18 of 1,000,000 places",
        "term 0001-0000000000000004711",
        "elsewhere</span> <bdi>host-2/17</bdi>",
        "<bdi>orders-1</bdi>",
        "orders/7@991",
        "oldest event 12 s",
    ] {
        assert!(page.body.contains(part), "{part}\n{}", page.body);
    }
    assert!(page.body.contains("<noscript><meta http-equiv=\"refresh\""), "it stays fresh without a script");
}

#[test]
fn nothing_runs_on_it_but_its_own_script() {
    let dir = tempfile::tempdir().unwrap();
    let page = World::open().get("/");
    let locked = guarded(dir.path()).get("/");
    for page in [page, locked] {
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        for rule in ["connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        for (kind, source) in [("script", "script-src"), ("style", "style-src")] {
            let text = between(&page.body, &format!("<{kind}>"), &format!("</{kind}>"));
            let digest = BASE64_STANDARD.encode(hmac_sha256::Hash::hash(text.as_bytes()));
            // This client makes heads lower case.
            let digest = digest.to_lowercase();
            assert!(policy.contains(&format!("{source} 'sha256-{digest}';")), "{kind}: {digest}\n{policy}");
            assert_eq!(page.body.matches(&format!("<{kind}")).count(), 1);
        }
        assert!(!page.body.contains("://"), "it leads nowhere else");
        assert_eq!(page.header("x-frame-options"), Some("deny"));
        assert_eq!(page.header("cache-control"), Some("no-store"));
    }
}

#[test]
fn what_ids_and_errors_say_is_text() {
    let world = World::open();
    let hostile = "</td><script>alert(1)</script>\"'&";
    let mut entry = run(1, hostile);
    entry.message = Some("<img src=x onerror=alert(2)>\u{1b}[2J\u{202e}".into());
    world.script.journal.lock().unwrap().push(entry);
    let body = world.get("/").body;
    assert!(body.contains("&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"), "{body}");
    assert!(body.contains("&lt;img src=x onerror=alert(2)&gt;\u{fffd}[2J\u{fffd}"), "{body}");
    assert!(!body.contains("<script>alert") && !body.contains("<img"));
    assert_eq!(body.matches("<script").count(), 1);
}

fn guarded(dir: &std::path::Path) -> World {
    let path = dir.join("token");
    std::fs::write(&path, TOKEN).unwrap();
    World::with(AdminOptions::new("127.0.0.1:0".parse().unwrap(), Some(path)))
}

#[test]
fn without_a_token_it_asks_for_one_and_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let world = guarded(dir.path());
    world.script.journal.lock().unwrap().push(run(1, "customer-4711"));
    world.script.health.lock().unwrap().problems = vec!["customer-4711 blocks a thread".into()];
    let is_locked = |answer: &Answer| {
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("bearer realm=\"evenkeel\"")));
        for word in ["4711", "dns", "orders", "kafka", "shards", "data-part=\"", "0.1.0"] {
            let body = answer.body.split("<script>").next().unwrap();
            let body = format!("{}{}", body.split("<style>").next().unwrap(), body.split("</style>").nth(1).unwrap());
            assert!(!body.contains(word), "{word}: {body}");
        }
    };
    is_locked(&world.get("/"));
    is_locked(&world.ask("GET", "/", &["Authorization: Bearer canary-token-5f2c9a7f"], ""));
    assert_eq!(world.script.calls(), [""; 0], "the engine is not even asked");
    let opened = world.ask("GET", "/", &[&format!("Authorization: Bearer {TOKEN}")], "");
    assert!(opened.status == 200 && opened.body.contains("customer-4711") && !opened.body.contains(TOKEN));
    is_locked(&world.get("/"));
    // A stranger's page may not even load it.
    assert_eq!(world.ask("GET", "/", &["Origin: http://evil.example"], "").status, 403);
    assert_eq!(world.ask("GET", "/", &["Sec-Fetch-Site: cross-site"], "").status, 403);
}

/// A page costs a few bounded questions, and many readers cost what one does.
#[test]
fn many_readers_cost_what_one_does() {
    let world = World::open();
    let begun = std::time::Instant::now();
    for _ in 0..50 {
        assert_eq!(world.get("/").status, 200);
    }
    let pages = begun.elapsed().as_secs() + 1;
    let calls = world.script.calls();
    assert!(calls.len() as u64 <= 6 * pages, "{pages} pages: {calls:?}");
    for query in calls.iter().filter(|call| call.starts_with("queues") || call.starts_with("journal")) {
        assert!(query.contains("limit: Some("), "{query}");
    }
}

/// An engine that is stuck or stops takes its parts away, not the page.
#[test]
fn parts_that_are_missing_are_said() {
    let world = World::open();
    world.script.stopped.store(true, Ordering::SeqCst);
    let body = world.get("/").body;
    assert!(body.contains("Not shown: ") && body.contains("ready"), "{body}");
    let world = World::open();
    world.script.stuck.store(true, Ordering::SeqCst);
    let body = world.get("/").body;
    assert!(body.contains("Not shown: no answer of the engine within 3 s"), "{body}");
}
