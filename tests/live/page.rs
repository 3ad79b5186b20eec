//! The status page of a running binary in a real browser (X1, X4, D11).

use std::fmt::Write as _;

use crate::browser::Browser;
use crate::run_world::{Process, Project};

/// Ids and errors that are markup: whatever is not text would change the title.
const HOSTILE: [&str; 4] = [
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=document.title='owned'>",
    "</td></table><svg onload=document.title='owned'>",
    "javascript:document.title='owned'//'\"`--><b>",
];
const TOKEN: &str = "a-token-of-the-status-page-0123456789";

/// Some ids that are done, some that fail, some that are given up, one that runs on.
const RECONCILER: &str = "#!/bin/sh
case $EVENKEEL_ID in
slow*) sleep 600 ;;
parked*) echo \"no zone file for $EVENKEEL_ID\" >&2; exit 65 ;;
fails* | *owned*) echo \"no route to $EVENKEEL_ID\" >&2; exit 1 ;;
esac
";

fn project(more: &str) -> Project {
    let project = Project::new(&format!(
        "name: zones\nshards: 6\nreconciler:\n  exec: ./reconcile.sh\n  timeout: none\n  workers: 1\n  concurrency: 8\n  \
         cancel_grace: 1s\n  retry: {{initial: 1h, max_delay: 1h}}\ntelemetry: {{logs: json, level: info}}\n{more}"
    ));
    project.script("reconcile.sh", RECONCILER);
    project
}

fn address(process: &Process) -> String {
    format!("http://{}/", process.address())
}

#[test]
fn x4_the_page_shows_what_fails_what_is_slow_and_what_happens() {
    let Some(mut browser) = Browser::start() else { return };
    let project = project("");
    let mut process = project.start();
    browser.look(1280, false);
    browser.open(&address(&process));
    browser.until("document.querySelector('[data-part=failing]').innerText.includes('Nothing fails')");
    browser.until("document.querySelector('[data-part=slowest]').innerText.includes('Nothing has run yet')");
    browser.picture("empty");
    let mut ids: Vec<String> = (0..40).map(|number| format!("zone-{number:02}.example")).collect();
    ids.extend(["slow-import", "fails-west", "fails-east", "parked-old.example"].map(str::to_owned));
    ids.extend(HOSTILE.map(str::to_owned));
    let triggered = process.ask(["trigger".to_owned()].into_iter().chain(ids));
    assert!(triggered.status.success(), "{triggered:?}");
    // What a refresh brings, without anybody touching the page.
    browser.until("document.querySelector('[data-part=failing]').rows.length === 7");
    browser.until("document.querySelector('[data-part=slowest]').innerText.includes('slow-import')");
    browser.until("document.querySelector('[data-part=journal]').innerText.includes('zone-39.example')");
    let failing = browser.text("[data-part=failing]");
    for part in HOSTILE.into_iter().chain(["parked-old.example", "no zone file for parked-old.example", " min"]) {
        assert!(failing.contains(part), "{part}\n{failing}");
    }
    assert_eq!(browser.value("document.querySelector('[data-part=shards]').rows.length"), 6);
    assert!(browser.text("[data-part=shards]").contains("this process"));
    assert_eq!(browser.value("document.querySelectorAll('main script, main img, main b').length"), 0, "ids are text");
    assert_eq!(browser.value("document.title"), "zones · evenkeel");
    // Nothing was loaded from elsewhere, and nothing but the page's own script would run.
    let loaded = browser.value("performance.getEntriesByType('resource').map(entry => entry.name)");
    assert!(loaded.as_array().unwrap().iter().all(|name| name.as_str().unwrap().starts_with(&address(&process))));
    browser.value(
        "{ const node = document.createElement('script'); node.textContent = 'document.title = \"owned\"'; \
                   document.body.append(node); }",
    );
    assert_ne!(browser.value("document.title"), "owned", "the policy lets a foreign script run");
    // A pause holds the journal, and the keyboard reaches everything.
    browser.value("document.getElementById('pause').click()");
    assert!(process.ask(["trigger", "fails-after-the-pause"]).status.success());
    browser.until("document.querySelector('[data-part=failing]').innerText.includes('after-the-pause')");
    assert!(!browser.text("[data-part=journal]").contains("after-the-pause"));
    let reached = browser.value("document.querySelectorAll('a[href], button, [tabindex=\"0\"]').length");
    assert!(reached.as_u64().unwrap() >= 7, "{reached}");
    wide_enough(&mut browser);
    for (name, width, dark) in [("light", 1280, false), ("dark", 1280, true), ("narrow", 390, true)] {
        browser.look(width, dark);
        browser.picture(name);
        wide_enough(&mut browser);
    }
    // The process goes: the page says so, and keeps what it knows.
    process.kill();
    browser.until("document.getElementById('live').innerText.startsWith('No answer since')");
    assert!(browser.text("[data-part=failing]").contains("fails-west"));
    browser.picture("disconnected");
}

/// The page itself never scrolls sideways; wide tables do.
#[track_caller]
fn wide_enough(browser: &mut Browser) {
    let widths = browser.value("[document.documentElement.scrollWidth, window.innerWidth]");
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{widths}");
}

#[test]
fn without_the_token_the_page_tells_nothing_and_with_it_everything() {
    let Some(mut browser) = Browser::start() else { return };
    let project = project("admin: {listen: '127.0.0.1:0', token_file: token}\n");
    project.script("token", TOKEN);
    let mut command = project.command();
    command.arg("run");
    let process = Process::spawn(command);
    process.until_started();
    browser.look(1280, true);
    browser.open(&address(&process));
    browser.until("document.getElementById('token') === document.activeElement");
    let mut secret = browser.text("html");
    secret.push_str(browser.value("document.documentElement.outerHTML").as_str().unwrap());
    assert!(!secret.contains("zones"), "not even a name: {secret}");
    browser.picture("locked");
    let enter = |browser: &mut Browser, token: &str| {
        browser.value(&format!("document.getElementById('token').value = {token:?}"));
        browser.value("document.querySelector('#unlock button').click()");
    };
    enter(&mut browser, "another-token-0123456789");
    browser.until("document.getElementById('refused').innerText === 'This token is not accepted.'");
    enter(&mut browser, TOKEN);
    browser.until("document.querySelector('[data-part=shards]').rows.length === 6");
    browser.until("document.title === 'zones · evenkeel'");
    let mut kept = String::new();
    write!(
        kept,
        "{}",
        browser.value("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    )
    .unwrap();
    kept.push_str(browser.value("document.documentElement.outerHTML").as_str().unwrap());
    assert!(!kept.contains(TOKEN), "the token is in the page's memory alone");
}
