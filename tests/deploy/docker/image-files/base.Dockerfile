# Debian packages that were unpacked only: what their scripts would have done besides.
FROM local-unpacked
RUN ["ln", "-sf", "mawk", "/usr/bin/awk"]
RUN ["mkdir", "-p", "-m", "1777", "/tmp"]
