// Reads rendered manifests and holds the objects of the Prometheus operator strictly against its own types:
//
//	operators FILE...
//
// Fails with every field that the operator does not know and every value that it cannot take, and where no file has an
// object of its. Objects of others are passed over.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	kinds "k8s.io/apimachinery/pkg/apis/meta/v1"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func check(document []byte) (bool, error) {
	var kind kinds.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return false, err
	}
	if kind.APIVersion != monitoring.SchemeGroupVersion.String() {
		return false, nil
	}
	switch kind.Kind {
	case monitoring.ServiceMonitorsKind:
		return true, yaml.UnmarshalStrict(document, &monitoring.ServiceMonitor{})
	case monitoring.PrometheusRuleKind:
		return true, yaml.UnmarshalStrict(document, &monitoring.PrometheusRule{})
	}
	return true, fmt.Errorf("kind %s is not one that the chart should make", kind.Kind)
}

func checkFile(name string) (found int, err error) {
	file, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	reader := documents.NewDocumentDecoder(io.NopCloser(bytes.NewReader(file)))
	defer reader.Close()
	document := make([]byte, len(file)+1)
	for {
		length, err := reader.Read(document)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		known, err := check(document[:length])
		if err != nil {
			return found, err
		}
		if known {
			found++
		}
	}
}

func main() {
	total, failed := 0, false
	for _, name := range os.Args[1:] {
		found, err := checkFile(name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			failed = true
		}
		total += found
	}
	if total == 0 {
		fmt.Fprintln(os.Stderr, "no object of the Prometheus operator in any file")
	}
	if failed || total == 0 {
		os.Exit(1)
	}
}
