//! Hooks as a program that embeds the engine uses them: from outside, through what is public.

use std::time::Duration;

use evenkeel::IdList;
use evenkeel::hooks::{
    Answer, Exec, ExecList, ExecSettings, HookError, LIST_TIMEOUT_DEFAULT, Webhook, WebhookSettings,
};

#[tokio::test]
async fn q9_a_folder_of_declarations_is_a_list() {
    let folder = tempfile::tempdir().unwrap();
    for zone in ["b", "a"] {
        std::fs::write(folder.path().join(zone), "").unwrap();
    }
    let settings = ExecSettings::new(["ls", "."], folder.path());
    let list = ExecList::new(settings, LIST_TIMEOUT_DEFAULT).unwrap();
    let (into, mut ids) = tokio::sync::mpsc::channel(8);
    assert_eq!(list.list(into).await.unwrap(), 2);
    assert_eq!((ids.recv().await.as_deref(), ids.recv().await.as_deref()), (Some("a"), Some("b")));
    assert_eq!(ids.recv().await, None);
}

#[test]
fn i2_settings_and_answers_are_refused_with_what_is_wrong() {
    assert!(matches!(Webhook::new(WebhookSettings::new("localhost:5000")), Err(HookError::Url(_))));
    assert!(matches!(Exec::new(ExecSettings::new([""], "/")), Err(HookError::Command(_))));
    let answer = Answer::parse(br#"{"requeue_after": "90s"}"#).unwrap();
    assert_eq!(answer.requeue_after.map(|span| span.0), Some(Duration::from_secs(90)));
    let error = Answer::parse(br#"{"requeue_after": "90"}"#).unwrap_err().to_string();
    assert!(error.contains("requeue_after: \"90\" has no unit"), "{error}");
}
