//! `kafka`.

use super::super::block::{Block, Read};
use super::super::bounds::kafka as keys;
use super::super::form::Opaque;
use super::super::resolved::{ClientCertificate, Kafka, Sasl, Tls};
use super::files;

/// Options that delivery rests on, or that have a key of their own, and what to do instead.
const REFUSED: [(&str, &str); 14] = [
    ("bootstrap.servers", "use kafka.brokers"),
    ("metadata.broker.list", "use kafka.brokers"),
    ("group.id", "it is made from name"),
    ("enable.auto.commit", "offsets are committed when their work is done"),
    ("enable.auto.offset.store", "offsets are committed when their work is done"),
    ("auto.offset.reset", "a missing offset starts at the start of the log, and says so"),
    ("partitioner", "use hash"),
    ("sasl.username", "use kafka.sasl.username"),
    ("sasl.password", "use kafka.sasl.password_file"),
    ("ssl.ca.location", "use kafka.tls.ca_file"),
    ("ssl.certificate.location", "use kafka.tls.certificate_file"),
    ("ssl.key.location", "use kafka.tls.key_file"),
    ("ssl.key.password", "use kafka.tls.key_password_file"),
    ("ssl.endpoint.identification.algorithm", "host names are always checked"),
];

pub(super) fn kafka(block: Block<'_>) -> Read<Kafka> {
    let brokers = block.list(&keys::BROKERS);
    let tls = block.optional_block(&keys::TLS).and_then(|block| block.map(tls).transpose());
    let sasl = block.optional_block(&keys::SASL).and_then(|block| block.map(sasl).transpose());
    let commit_interval = block.get(&keys::COMMIT_INTERVAL);
    let options = block.pairs(&keys::OPTIONS, &Opaque, option_is_free);
    block.close();
    Ok(Kafka { brokers: brokers?, tls: tls?, sasl: sasl?, commit_interval: commit_interval?, options: options? })
}

fn option_is_free(name: &str) -> Result<(), String> {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, instead)) => Err(format!("cannot be set here: {instead}")),
        None => Ok(()),
    }
}

fn tls(block: Block<'_>) -> Read<Tls> {
    let ca_file = files::pem(&block, &keys::CA_FILE, "CERTIFICATE");
    let certificate_file = files::pem(&block, &keys::CERTIFICATE_FILE, "CERTIFICATE");
    let key_file = files::pem(&block, &keys::KEY_FILE, "PRIVATE KEY");
    let key_password = files::secret(&block, &keys::KEY_PASSWORD, &keys::KEY_PASSWORD_FILE);
    let client = match (certificate_file?, key_file?, key_password?) {
        (Some(certificate_file), Some(key_file), key_password) => {
            Some(ClientCertificate { certificate_file, key_file, key_password })
        }
        (None, None, None) => None,
        (Some(_), None, _) => return Err(block.fault(&keys::CERTIFICATE_FILE, "needs key_file beside it")),
        (None, Some(_), _) => return Err(block.fault(&keys::KEY_FILE, "needs certificate_file beside it")),
        (None, None, Some(_)) => return Err(block.cx.fault(&block.path, "has a key_password and no key_file")),
    };
    block.close();
    Ok(Tls { ca_file: ca_file?, client })
}

fn sasl(block: Block<'_>) -> Read<Sasl> {
    let mechanism = block.get(&keys::MECHANISM);
    let username = block.get(&keys::USERNAME);
    let password = files::secret(&block, &keys::PASSWORD, &keys::PASSWORD_FILE).and_then(|password| {
        password.ok_or_else(|| block.cx.fault(&block.path, "needs one of password_file and password"))
    });
    block.close();
    Ok(Sasl { mechanism: mechanism?, username: username?, password: password? })
}
