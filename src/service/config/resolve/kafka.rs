//! `kafka`.

use super::super::block::Block;
use super::super::bounds::kafka as keys;
use super::super::context::Read;
use super::super::form::Opaque;
use super::super::resolved::{ClientCertificate, Kafka, Mechanism, Sasl, Tls};
use super::files;

pub(super) fn kafka(block: Block<'_>) -> Read<Kafka> {
    let brokers = block.list(&keys::BROKERS);
    let tls = block.optional_block(&keys::TLS).and_then(|block| block.map(tls).transpose());
    let sasl = block.optional_block(&keys::SASL).and_then(|block| block.map(sasl).transpose());
    let commit_interval = block.get(&keys::COMMIT_INTERVAL);
    let options = block.pairs(&keys::OPTIONS, &Opaque);
    block.close();
    Ok(Kafka { brokers: brokers?, tls: tls?, sasl: sasl?, commit_interval: commit_interval?, options: options? })
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
    let username = block.maybe(&keys::USERNAME);
    let password = files::secret(&block, &keys::PASSWORD, &keys::PASSWORD_FILE);
    let token_file = files::secret_file(&block, &keys::TOKEN_FILE);
    let needs = |what: &str| block.cx.fault(&block.path, format!("needs {what}"));
    let sasl = match (mechanism?, username?, password?, token_file?) {
        (Mechanism::OauthBearer, None, None, Some(token_file)) => Sasl::OauthBearer { token_file },
        (Mechanism::OauthBearer, None, None, None) => return Err(needs("token_file for OAUTHBEARER")),
        (Mechanism::OauthBearer, ..) => return Err(needs("no username and no password for OAUTHBEARER")),
        (_, _, _, Some(_)) => return Err(block.fault(&keys::TOKEN_FILE, "goes with OAUTHBEARER only")),
        (mechanism, Some(username), Some(password), None) => Sasl::Password { mechanism, username, password },
        (_, None, _, None) => return Err(needs("a username")),
        (_, _, None, None) => return Err(needs("one of password_file and password")),
    };
    block.close();
    Ok(sasl)
}
